"""Neural networks with very large output layers, trained on CPUs and over slow networks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dslide.api import evaluate, predict, resume, train
    from dslide.checkpoint.relabel import relabel
    from dslide.checkpoint.saved_model import load_model
    from dslide.checkpoint.vectors import Vectors
    from dslide.config import Config
    from dslide.data import Dataset, SparseRows
    from dslide.data.load import load
    from dslide.errors import UserError
    from dslide.model.network import Network
    from dslide.sklearn.estimator import SlideClassifier
    from dslide.training.callbacks import (
        CalibrationInfo,
        Callback,
        EpochInfo,
        FitResult,
        RunInfo,
        StepInfo,
        TestInfo,
        TrialInfo,
        ValidationInfo,
    )
    from dslide.training.inference import Model, open_model
    from dslide.training.predictions import Prediction
    from dslide.training.run import RunResult
    from dslide.training.trainer import Trainer

    __version__: str

__all__ = [
    "CalibrationInfo", "Callback", "Config", "Dataset", "EpochInfo", "FitResult", "Model", "Network", "Prediction",
    "RunInfo", "RunResult", "SlideClassifier", "SparseRows", "StepInfo", "TestInfo", "Trainer", "TrialInfo",
    "UserError", "ValidationInfo", "Vectors", "__version__", "evaluate", "load", "load_model", "open_model", "predict",
    "relabel", "resume", "train",
]  # fmt: skip

# Imported on first use: the command line starts without scikit-learn, scipy and the native module.
_MODULES = {
    "api": ("evaluate", "predict", "resume", "train"),
    "checkpoint.relabel": ("relabel",),
    "checkpoint.saved_model": ("load_model",),
    "checkpoint.vectors": ("Vectors",),
    "config": ("Config",),
    "data": ("Dataset", "SparseRows", "load"),
    "errors": ("UserError",),
    "model.network": ("Network",),
    "sklearn.estimator": ("SlideClassifier",),
    "training.callbacks": (
        "CalibrationInfo",
        "Callback",
        "EpochInfo",
        "FitResult",
        "RunInfo",
        "StepInfo",
        "TestInfo",
        "TrialInfo",
        "ValidationInfo",
    ),
    "training.inference": ("Model", "open_model"),
    "training.predictions": ("Prediction",),
    "training.run": ("RunResult",),
    "training.trainer": ("Trainer",),
}


if not TYPE_CHECKING:  # type checkers see the imports above, and so they see names that don't exist

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            value: Any = version("dslide")
        elif module := next((module for module, names in _MODULES.items() if name in names), None):
            value = getattr(importlib.import_module(f"dslide.{module}"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
