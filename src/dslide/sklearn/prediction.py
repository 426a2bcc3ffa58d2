"""Predictions of the estimator, as scikit-learn has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import expit, softmax
from sklearn.utils.validation import check_consistent_length

from dslide.data import Dataset, Features, SparseRows, sparse_part
from dslide.errors import DataError, MemoryNeeded
from dslide.model.network import Network
from dslide.sklearn.label_coder import read_exclude, read_labels
from dslide.sklearn.rows import has_items, rows_to_predict
from dslide.training.metrics import Evaluation
from dslide.training.predictions import probabilities_of
from dslide.util.units import format_bytes

if TYPE_CHECKING:
    from dslide.sklearn.estimator import SlideClassifier

RESULT_BYTES = 10**9  # largest matrix of scores that is made
BLOCK_BYTES = 64 << 20  # scores held at a time where only few of them are kept

Array = npt.NDArray[Any]


def predict(model: SlideClassifier, X: Any) -> Any:
    """As `SlideClassifier.predict`."""
    x = rows_to_predict(model, X)
    if not model._coder.multilabel:
        return model._coder.decode(model.network_.predict_topk(x, 1)[0][:, 0])
    if model._coder.dense:
        check_size(len(x), len(model.classes_), 8, "a network fitted with a sparse y predicts sparse rows")
    if model.network_.config.loss == "sigmoid":
        found = likely_labels(model.network_, x)
    else:
        found = best_labels(model.network_, x, max(1, round(model._label_counts.sum() / max(model._rows, 1))))
    return found.toarray() if model._coder.dense else found


def predict_topk(model: SlideClassifier, X: Any, k: int, approximate: bool, exclude: Any) -> tuple[Array, Array]:
    """As `SlideClassifier.predict_topk`."""
    x = rows_to_predict(model, X)
    if not isinstance(k, (int, np.integer)) or not 1 <= k <= len(model.classes_):
        raise DataError(f"k: expected 1 to {len(model.classes_)}, the number of labels, not {k!r}")
    left_out = sparse_part(x) if has_items(model) else None
    if exclude is not None:
        left_out = read_exclude(exclude, len(x), len(model.classes_))
    network = model.network_
    columns, scores = (network.predict_topk_approximate if approximate else network.predict_topk)(x, k, left_out)
    if approximate:
        short = np.flatnonzero(columns[:, -1] < 0)
        left_out = None if left_out is None else left_out.take(short)
        columns[short], scores[short] = network.predict_topk(x.take(short), k, left_out)
    return model._coder.decode(columns), scores


def predict_proba(model: SlideClassifier, X: Any, k: int | None) -> Any:
    """As `SlideClassifier.predict_proba`."""
    if k is not None:
        labels, found = model.predict_topk(X, k)
        return labels, probabilities_of(model.network_, rows_to_predict(model, X), found)
    scores = all_scores(model, X, item=8).astype(np.float64)
    if model.network_.config.loss == "softmax":
        return np.asarray(softmax(scores, axis=1))
    chances = np.asarray(expit(scores))
    return chances if model._coder.multilabel else chances / chances.sum(axis=1, keepdims=True)


def score(model: SlideClassifier, X: Any, y: Any) -> float:
    """As `SlideClassifier.score`."""
    labels = read_labels(y)
    if isinstance(labels, SparseRows):
        x, evaluation = rows_to_predict(model, X), Evaluation((1,))
        truth = Dataset(x, model._coder.encode(labels), source="y").y
        evaluation.update(model.network_.predict_topk(x, 1)[0], truth)
        return evaluation.result()["p_at_1"]
    predicted = model.predict(X)
    check_consistent_length(predicted, labels)
    return float(np.mean(predicted == labels))


def all_scores(model: SlideClassifier, X: Any, item: int) -> Array:
    """Logits of all labels, which become numbers of `item` bytes."""
    x = rows_to_predict(model, X)
    check_size(len(x), len(model.classes_), item, "use predict_topk, or decision for the labels of interest")
    return model.network_.scores(x, np.arange(len(model.classes_), dtype=np.int32))


def likely_labels(network: Network, x: Features) -> sp.csr_matrix:
    """(rows, labels): 1 for the labels with a probability above one half."""
    every = np.arange(network.labels, dtype=np.int32)
    size = max(1, BLOCK_BYTES // (4 * len(every)))  # rows
    blocks = [x.part(begin, min(begin + size, len(x))) for begin in range(0, max(len(x), 1), size)]
    found = [sp.csr_matrix(network.scores(block, every) > 0, dtype=np.int64) for block in blocks]
    return sp.csr_matrix(sp.vstack(found, format="csr"))


def best_labels(network: Network, x: Features, k: int) -> sp.csr_matrix:
    """(rows, labels): 1 for the k best labels of each row."""
    columns = np.sort(network.predict_topk(x, k)[0], axis=1)
    ones, ends = np.ones(columns.size, np.int64), np.arange(len(x) + 1) * k
    return sp.csr_matrix((ones, columns.ravel(), ends), shape=(len(x), network.labels))


def check_size(rows: int, columns: int, item: int, advice: str) -> None:
    """MemoryNeeded if a matrix of numbers of `item` bytes would be too large."""
    if (size := rows * columns * item) > RESULT_BYTES:
        raise MemoryNeeded(
            f"a matrix of {rows:,} rows and {columns:,} labels would take {format_bytes(size)}, more than "
            f"{format_bytes(RESULT_BYTES)}; {advice}"
        )
