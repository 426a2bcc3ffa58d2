"""Runs reported to MLflow."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dslide.errors import ConfigError, UserError, raised_as
from dslide.tracking.tracker import State, Tracker

STATES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflowLog(Tracker):
    """Reports a training to MLflow: a callback for `dslide.train`, `dslide.resume` and `SlideClassifier.fit`.

    MLflow's own settings say where to: ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME`` in the environment, or
    ``mlflow.set_tracking_uri`` and ``mlflow.set_experiment``. If a run of MLflow is active, it is used, and stays open.

    The model opens with ``mlflow.pyfunc.load_model("runs:/RUN_ID/model")``: texts, lists of items, scipy matrices or
    arrays in; for each row its best labels out, as in a line of ``dslide predict --json``.

    Parameters
    ----------
    every_seconds : float
        Least time between two steps that are reported.
    model : bool
        Store the network with a whole run.
    """

    service, package = "MLflow", "mlflow"

    def _begin(self, name: str | None, before: str | None, options: Mapping[str, Any]) -> str:
        import mlflow  # takes seconds, and rank 0 alone needs it

        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # 14 s; its own 7 are four minutes
        with raised_as(ConfigError, "mlflow", OSError, mlflow.MlflowException):
            active = mlflow.active_run()
            self._own = active is None
            run = active or mlflow.start_run(run_id=before, run_name=name)
            if before is None:  # parameters of MLflow never change
                mlflow.log_params(dict(options))
        self.errors = (OSError, mlflow.MlflowException, UserError)  # from now on
        return str(run.info.run_id)

    def _log(self, scalars: Mapping[str, float], step: int) -> None:
        import mlflow

        mlflow.log_metrics(dict(scalars), step=step, synchronous=False)  # a slow server does not slow down training

    def _add_result(self, report: Path, summary: Mapping[str, Any]) -> None:
        import mlflow

        mlflow.log_artifact(str(report))
        mlflow.log_dict(dict(summary), "summary.json")

    def _add_model(self, folder: Path) -> None:
        import mlflow

        from dslide.tracking import mlflow_model

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that an example of the input would be good to have
            mlflow.pyfunc.log_model(
                name="model", loader_module=mlflow_model.__name__, data_path=str(folder),
                signature=mlflow_model.signature(folder), pip_requirements=[f"dslide=={version('dslide')}"],
            )  # fmt: skip

    def _finish(self, state: State) -> None:
        import mlflow

        mlflow.flush_async_logging()
        if self._own:
            mlflow.end_run(STATES[state])
