"""Rows as users give them: texts, names of items, matrices, pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone

from dslide.data import DenseRows, Features, SparseRows, TextVectorizer
from dslide.data.dataset import checked_weights
from dslide.errors import DataError

FLOATS = [np.float32, np.float16, np.float64]  # types of a matrix that is taken as it is; others become the first


def is_pair(X: Any) -> bool:
    """Whether rows are given as a pair of sparse features, or texts, and a dense matrix."""
    return isinstance(X, tuple) and len(X) == 2 and (isinstance(X[1], DenseRows) or getattr(X[1], "ndim", 0) == 2)


def rows_of_matrix(matrix: Any) -> Features:
    """Rows of a scipy sparse or a dense matrix. A dense one in memory is taken as sparse if it mostly has zeros."""
    if sp.issparse(matrix):
        return SparseRows.from_scipy(matrix)
    rows = DenseRows(np.ascontiguousarray(matrix))
    if not rows.is_mapped and 2 * np.count_nonzero(matrix) < matrix.size:
        return SparseRows.from_scipy(matrix)
    if matrix.dtype == np.float64:
        rows.refuse_infinite()  # as float32
    return rows


def are_texts(X: Any) -> bool:
    """Whether rows are texts, of which a vectorizer makes features: a list, an array or a column of a data frame."""
    if isinstance(X, str):
        raise DataError("X: expected a list of texts, not a single one")
    if not isinstance(X, (list, tuple)) and getattr(X, "ndim", 0) != 1:
        return False
    return len(X) > 0 and all(isinstance(x, str) for x in X)


def are_items(X: Any) -> bool:
    """Whether rows are lists of names of items."""
    return isinstance(X, (list, tuple)) and all(
        isinstance(row, (list, tuple)) and all(isinstance(item, str) for item in row) for row in X
    )


def new_vectorizer(asked: Any) -> Any:
    """One like that which the user gave, which has not learned anything; None: dslide's own."""
    if asked is None or isinstance(asked, TextVectorizer):
        return TextVectorizer(None if asked is None else asked.options)
    return clone(asked)


def features_of_texts(texts: Any, vectorizer: Any, learn: bool) -> Any:
    """Features by dslide's own vectorizer, or by one that scikit-learn has; a new one learns them."""
    if isinstance(vectorizer, TextVectorizer):
        return vectorizer.fit_transform_rows(texts) if learn else vectorizer.transform_rows(texts)
    return vectorizer.fit_transform(texts) if learn else vectorizer.transform(texts)


def relative_weights(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    """Weights of rows with a mean of 1; DataError if they are none."""
    weights = checked_weights(sample_weight, rows)
    if not weights.any():
        raise DataError("sample_weight: the weights of all rows are zero")
    return np.asarray(np.round(weights / weights.mean(), 9))  # so that weights that are all alike are 1
