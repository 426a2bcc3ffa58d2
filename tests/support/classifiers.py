"""Rows of a planted rule, classifiers fitted to them, and how classifiers are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.testing import assert_array_equal

from dslide import SlideClassifier

SMALL: dict[str, Any] = {
    "hidden": (16,),
    "batch_size": 16,
    "learning_rate": 0.01,
    "threads": 1,
    "optimizer": "adam",
    "dropout_input": 0.0,
    "dropout_hidden": 0.0,
    "prior_labels": 0,
    "prior_power": 1.0,
    "prior_boost": 1.0,
    "prior_scale": 30.0,
    "activation": "relu",
}
CLASSES = 30


def planted(rows: int, seed: int, classes: int = CLASSES, per_row: int = 1) -> tuple[sp.csr_matrix, np.ndarray]:
    """Rows (normalised) with 4 of the 6 features that each of their classes owns and 4 random ones; their
    classes, (rows, per_row)."""
    features = 20 * classes
    owned = np.random.default_rng(7).permutation(features)[: 6 * classes].reshape(classes, 6)
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.choice(classes, per_row, replace=False) for _ in range(rows)])
    signal = rng.permuted(owned[labels], axis=2)[:, :, :4].reshape(rows, -1)
    columns = np.concatenate([signal, rng.integers(0, features, (rows, 4))], axis=1)
    row = np.repeat(np.arange(rows), columns.shape[1])
    x = sp.csr_matrix((np.ones(len(row)), (row, columns.ravel())), shape=(rows, features))
    x.data[:] = 1
    return sp.csr_matrix(x / np.sqrt(columns.shape[1])), labels


def indicator(labels: np.ndarray, classes: int = CLASSES) -> np.ndarray:
    y = np.zeros((len(labels), classes))
    np.put_along_axis(y, labels, 1, axis=1)
    return y


X, Y = planted(600, seed=1)
X_TEST, Y_TEST = planted(300, seed=2)
XM, YM = planted(800, seed=3, per_row=3)
XM_TEST, YM_TEST = planted(200, seed=4, per_row=3)


def fitted(**options: Any) -> SlideClassifier:
    return SlideClassifier(**{**SMALL, **options}).fit(X, Y[:, 0])


def same(a: SlideClassifier, b: SlideClassifier, x: Any) -> None:
    assert a.get_params() == b.get_params()
    assert a.n_iter_ == b.n_iter_
    assert_array_equal(a.decision_function(x), b.decision_function(x))
    for one, two in zip(a.predict_topk(x, 3), b.predict_topk(x, 3), strict=True):
        assert_array_equal(one, two)
    one, two = a.predict(x), b.predict(x)
    assert type(one) is type(two)
    assert_array_equal(one.toarray() if sp.issparse(one) else one, two.toarray() if sp.issparse(two) else two)


def same_state(a: SlideClassifier, b: SlideClassifier) -> None:
    assert a.trainer_.progress() == b.trainer_.progress()
    for name, array in a.network_.state().items():
        assert_array_equal(array, b.network_.state()[name], err_msg=name)
