"""X as rows of the network: texts, items, matrices and pairs, checked against what was fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from dslide.data import DenseRows, Features, MixedRows, SparseRows, TextVectorizer, dense_part, sparse_part
from dslide.data.formats.interactions import rows_of_items
from dslide.data.items import item_features
from dslide.errors import DataError
from dslide.sklearn.inputs import (
    FLOATS,
    are_items,
    are_texts,
    features_of_texts,
    is_pair,
    new_vectorizer,
    rows_of_matrix,
)
from dslide.sklearn.ranks import use_rank_threads

if TYPE_CHECKING:
    from dslide.sklearn.estimator import SlideClassifier


def read_rows(model: SlideClassifier, X: Any, *, new: bool) -> Features:
    """X as rows; `new` sets how many features there are, else it must fit what was set."""
    x = _pair(model, *X, new=new) if is_pair(X) else _matrix(model, X, new=new)
    if new:
        dense = dense_part(x)
        model._dense_features = 0 if dense is None else dense.columns
    return x


def read_more_rows(model: SlideClassifier, X: Any) -> Features:
    """X as rows, which may have more columns, or words, than there were."""
    if is_pair(X):
        return read_rows(model, X, new=False)
    vectorizer, texts = getattr(model, "vectorizer_", None), are_texts(X)
    shape: Any = getattr(X, "shape", ())
    if isinstance(vectorizer, TextVectorizer) and texts:
        vectorizer.grow(X)
        model.n_features_in_ = len(vectorizer.words)
    elif isinstance(X, SparseRows):
        model.n_features_in_ = max(X.columns, model.n_features_in_)
    elif not texts and len(shape) == 2 and shape[1] > model.n_features_in_:
        if hasattr(model, "feature_names_in_"):
            raise DataError("X: its columns have names, and of these there can't be more later")
        validate_data(model, X[:1], accept_sparse="csr", reset=True)
    return read_rows(model, X, new=False)


def rows_to_predict(model: SlideClassifier, X: Any) -> Features:
    """X as rows of a fitted network."""
    check_is_fitted(model)
    use_rank_threads(model._config().threads)
    x = read_rows(model, X, new=False)
    return item_features(sparse_part(x), model._label_counts) if has_items(model) else x


def has_items(model: SlideClassifier) -> bool:
    """Whether the model was trained by `dslide train` on interactions: a row has the items of a user."""
    return getattr(model, "_interactions", False)


def _matrix(model: SlideClassifier, X: Any, *, new: bool) -> Features:
    """Rows of one kind."""
    if not new and has_items(model) and are_items(X):
        X = rows_of_items(X, model.label_names_, model.network_.features)
    if (new or getattr(model, "vectorizer_", None) is not None) and are_texts(X):
        if not new and _has_pairs(model):
            raise DataError("X: expected a pair of texts and dense rows, as in fitting, not texts alone")
        X = _vectorized(model, X, new)
    if not isinstance(X, Features):
        matrix = validate_data(model, X, accept_sparse="csr", dtype=FLOATS, reset=new)
        return rows_of_matrix(matrix)
    if new:
        if len(X) == 0 or X.columns == 0:
            raise DataError(f"X: there is nothing to learn from {len(X)} rows of {X.columns} features")
        _set_features(model, X.columns)
    elif X.columns > model.n_features_in_:
        raise DataError(f"X has {X.columns} features, but there were {model.n_features_in_} in fitting")
    if not isinstance(X, SparseRows) or not isinstance(X.values, np.memmap):
        X.refuse_infinite()  # sparse rows on disk were checked when they were written
    rows: Features = X
    return rows


def _pair(model: SlideClassifier, first: Any, second: Any, *, new: bool) -> MixedRows:
    """Sparse rows or texts, and a dense matrix, side by side."""
    if (new or getattr(model, "vectorizer_", None) is not None) and are_texts(first):
        first = _vectorized(model, first, new)
    if not isinstance(first, SparseRows):
        first = SparseRows.from_scipy(check_array(first, accept_sparse="csr", dtype=np.float32))
    if not isinstance(second, DenseRows):
        second = DenseRows(np.ascontiguousarray(check_array(second, dtype=FLOATS)))
    rows = MixedRows(first, second)
    rows.refuse_infinite()
    if new:
        _set_features(model, rows.columns)
    elif second.columns != model._dense_features or rows.columns > model.n_features_in_:
        sparse = model.n_features_in_ - model._dense_features
        raise DataError(
            f"X has {first.columns} sparse features and {second.columns} dense ones, but there were {sparse} and "
            f"{model._dense_features} in fitting"
        )
    return rows


def _vectorized(model: SlideClassifier, texts: Any, new: bool) -> Any:
    if new:
        model.vectorizer_ = new_vectorizer(model.vectorizer)
    return features_of_texts(texts, model.vectorizer_, learn=new)


def _set_features(model: SlideClassifier, columns: int) -> None:
    model.n_features_in_ = columns
    model.__dict__.pop("feature_names_in_", None)


def _has_pairs(model: SlideClassifier) -> bool:
    """Whether rows have sparse and dense features."""
    return bool(0 < model._dense_features < model.n_features_in_)
