"""A model folder as a model of MLflow, for `mlflow.pyfunc`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow.models
import numpy as np
import scipy.sparse as sp
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

from dslide.api import predict
from dslide.checkpoint.saved_model import load_model
from dslide.data import Dataset, DenseRows, SparseRows
from dslide.training.inference import Model, Rows, open_model

PARAMETERS = (("k", "long", 5), ("approximate", "boolean", False), ("probabilities", "boolean", False))


def signature(folder: Path) -> mlflow.models.ModelSignature:
    """What the model takes: texts, if it was trained on them alone; else rows of any kind."""
    saved = load_model(folder)
    text = saved.vectorizer is not None and not saved.dense_features
    params = ParamSchema([ParamSpec(name, kind, default) for name, kind, default in PARAMETERS])
    return mlflow.models.ModelSignature(inputs=Schema([ColSpec("string")]) if text else None, params=params)


class Predictor:
    """What `mlflow.pyfunc.load_model` wraps."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """The best labels of each row, as `dslide predict --json` writes them."""
        rows = _rows(model_input, self._model.saved.labels)
        return [found.to_dict() for found in predict(self._model, rows, **(params or {}))]


def _rows(given: Any, labels: int) -> Dataset | Rows:
    if hasattr(given, "to_numpy"):  # a data frame or a column of one
        given = given.to_numpy()
    if isinstance(given, np.ndarray) and given.dtype.kind in "OU":
        given = given.ravel().tolist()
    if not sp.issparse(given) and not isinstance(given, np.ndarray):
        return given  # type: ignore[no-any-return]
    x = SparseRows.from_scipy(given) if sp.issparse(given) else DenseRows(np.ascontiguousarray(given, np.float32))
    none = SparseRows(np.zeros(len(x) + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), labels)
    return Dataset(x, none, source="the rows")


def _load_pyfunc(path: str) -> Predictor:
    """Called by MLflow."""
    return Predictor(open_model(path))
