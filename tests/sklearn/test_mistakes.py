"""Labels and requests that are refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError
from support.classifiers import CLASSES, SMALL, X_TEST, X, Y, fitted

import dslide
from dslide import SlideClassifier, SparseRows
from dslide.errors import DataError, ModelError


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed, but the target y is None"),
        ([[0], [1, 2], [3]], "y: lists of labels for each row are not taken; give a matrix"),
        ([{0}, {1, 2}, {3}], "y: lists of labels for each row are not taken; give a matrix"),
        ([0, [1, 2], 3], "y: lists of labels for each row are not taken; give a matrix"),
        (np.array([None, [1], [2]], object), "y: lists of labels for each row are not taken"),
        ([["a", "b"], ["c", "d"], ["e", "f"]], "y: expected a matrix of numbers, not of"),
        ([0.5, 1, 2], "Unknown label type: y holds continuous numbers like 0.5, not classes"),
        (np.array(["a", 1, "b"], object), "Unknown label type: y mixes int, str, which can't be sorted"),
        (np.array(["2001-01-01"] * 3, "M8[D]"), "Unknown label type: y holds datetime64"),
        ([0, 1, np.nan], "Input y contains NaN"),
        ([0, 1], "y: there are 3 rows of features but 2 rows of labels"),
        ([[0, 1.0], [0, -1], [1, 0]], "y: row 1, label 1: a label's weight can't be negative, found -1"),
        (sp.csr_matrix([[0, 1], [0, np.nan], [1, 0]]), "y: row 1, column 1: expected a finite 32-bit number"),
        (sp.csr_matrix((3, 0)), "y: there are no labels in it: it has 0 columns"),
        (sp.csr_matrix((3, 2)), "y: there is no row with a label to learn from"),
    ],
)
def test_bad_labels_are_refused(y: Any, message: str) -> None:
    with pytest.raises(ValueError, match="y") as caught:
        SlideClassifier(**SMALL).fit(X[:3], y)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_requests_are_refused() -> None:
    model = fitted(epochs=1)
    for k in (0, CLASSES + 1, 2.5, "3"):
        with pytest.raises(DataError, match=f"k: expected 1 to 30, the number of labels, not {k!r}"):
            model.predict_topk(X, k=k)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="label 30 is not one that the classifier was fitted with"):
        model.decision(X, [0, 30])
    with pytest.raises(DataError, match="labels: expected a list of labels, not 0 dimensions"):
        model.decision(X, 3)
    with pytest.raises(ValueError, match="X has 599 features, but SlideClassifier is expecting 600"):
        model.predict(X[:, :-1])
    wide = SparseRows.from_scipy(sp.csr_matrix((1, 601)))
    with pytest.raises(DataError, match="X has 601 features, but there were 600 in fitting"):
        model.predict(wide)
    with pytest.raises(DataError, match="X: there is nothing to learn from 0 rows of 5 features"):
        model.fit(SparseRows.from_scipy(sp.csr_matrix((0, 5))), Y[:, 0])
    with pytest.raises(NotFittedError):
        model.predict(X)  # a failed fit leaves no half of a classifier
    with pytest.raises(ModelError, match="there is no such model folder"):
        SlideClassifier.load("/nowhere/at/all")


def test_narrower_sparse_rows_are_welcome() -> None:
    """Files without a header end at the last feature that occurs in them."""
    model = fitted(epochs=1)
    narrow = X_TEST[:, :500]
    padded = sp.hstack([narrow, sp.csr_matrix((300, 100))], format="csr")
    assert_array_equal(model.predict(SparseRows.from_scipy(narrow)), model.predict(padded))


def test_importing_the_package_is_quick_and_offers_all_names() -> None:
    for name in dslide.__all__:
        assert getattr(dslide, name) is not None
        assert name in dir(dslide)
    with pytest.raises(AttributeError, match="module 'dslide' has no attribute 'nothing'"):
        dslide.nothing  # noqa: B018
    code = "import dslide.cli, sys; print({'numpy', 'scipy', 'sklearn', 'dslide._core'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
