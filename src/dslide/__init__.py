"""Neural networks with enormous output layers, trained on plain CPU machines."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Config
    from .data import Dataset, SparseRows
    from .data.load import load
    from .estimator import SlideClassifier
    from .model_folder import load_model
    from .network import Network
    from .trainer import Callback, Trainer
    from .vectors import Vectors

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
    "Callback": "trainer",
    "Config": "config",
    "Dataset": "data",
    "Network": "network",
    "SlideClassifier": "estimator",
    "SparseRows": "data",
    "Trainer": "trainer",
    "Vectors": "vectors",
    "load": "data",
    "load_model": "model_folder",
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
