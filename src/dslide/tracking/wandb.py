"""Runs reported to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dslide.errors import ConfigError, UserError, raised_as
from dslide.tracking.tracker import State, Tracker


class WandbLog(Tracker):
    """Reports a training to Weights & Biases: a callback for `dslide.train`, `dslide.resume` and `SlideClassifier.fit`.

    Its own settings say where to, such as ``WANDB_PROJECT``, ``WANDB_ENTITY`` and ``WANDB_MODE=offline`` in the
    environment. If a run is active, it is used, and stays open.

    Parameters
    ----------
    every_seconds : float
        Least time between two steps that are reported.
    model : bool
        Store the network with a whole run, as an artifact of type "model".
    """

    service, package = "Weights & Biases", "wandb"

    def _begin(self, name: str | None, before: str | None, options: Mapping[str, Any]) -> str:
        import wandb  # takes seconds, and rank 0 alone needs it

        with raised_as(ConfigError, "wandb", OSError, wandb.Error):
            self._own = wandb.run is None
            self._run = wandb.run or wandb.init(name=name, id=before, resume="allow")
            self._run.config.update(dict(options), allow_val_change=True)
        self.errors = (OSError, wandb.Error, UserError)  # from now on
        return str(self._run.id)

    def _log(self, scalars: Mapping[str, float], step: int) -> None:
        self._run.log(dict(scalars), step=step)

    def _add_result(self, report: Path, summary: Mapping[str, Any]) -> None:
        import wandb

        self._run.log({"report": wandb.Html(report.read_text(encoding="utf-8"), inject=False)})
        self._run.summary.update(dict(summary))

    def _add_model(self, folder: Path) -> None:
        import wandb

        artifact = wandb.Artifact(f"{self._run.id}-model", type="model")
        artifact.add_dir(str(folder))
        self._run.log_artifact(artifact)

    def _finish(self, state: State) -> None:
        if self._own:
            self._run.finish(exit_code=int(state != "finished"))
