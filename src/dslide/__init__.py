"""Neural networks with enormous output layers, trained on plain CPU machines."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dslide.checkpoint.saved_model import load_model
    from dslide.checkpoint.vectors import Vectors
    from dslide.config import Config
    from dslide.data import Dataset, SparseRows
    from dslide.data.load import load
    from dslide.model.network import Network
    from dslide.sklearn.estimator import SlideClassifier
    from dslide.training.trainer import Callback, Trainer

    __version__: str

__all__ = [
    "Callback",
    "Config",
    "Dataset",
    "Network",
    "SlideClassifier",
    "SparseRows",
    "Trainer",
    "Vectors",
    "__version__",
    "load",
    "load_model",
]

# Imported when first asked for: the command line starts without scikit-learn, scipy and the native module.
_HOMES = {
    "Callback": "training.trainer",
    "Config": "config",
    "Dataset": "data",
    "Network": "model.network",
    "SlideClassifier": "sklearn.estimator",
    "SparseRows": "data",
    "Trainer": "training.trainer",
    "Vectors": "checkpoint.vectors",
    "load": "data",
    "load_model": "checkpoint.saved_model",
}


if not TYPE_CHECKING:  # type checkers see the imports above, and so they see names that don't exist

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            value: Any = version("dslide")
        elif name in _HOMES:
            value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
