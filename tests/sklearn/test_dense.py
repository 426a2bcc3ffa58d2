"""The estimator on dense rows: what it takes, without copies, and pairs of sparse and dense features."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from dslide import SlideClassifier
from dslide.data import DenseRows, MixedRows
from dslide.errors import DataError
from dslide.sklearn.rows import read_rows

ROWS, COLUMNS = 400, 20
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 10, ROWS)
X = (RNG.standard_normal((10, COLUMNS))[Y // 2 * 2] + 0.5 * RNG.standard_normal((ROWS, COLUMNS))).astype(np.float32)
WORDS = sp.csr_matrix((np.ones(ROWS), (np.arange(ROWS), 3 * (Y % 2))), (ROWS, 2000), dtype=np.float32)
TEXTS = [["even number", "odd number"][label % 2] for label in Y]
FAST: dict[str, Any] = {"threads": 1, "epochs": 3}


def fitted(x: Any, **options: Any) -> SlideClassifier:
    return SlideClassifier(**(FAST | options)).fit(x, Y)


def rows_of(model: SlideClassifier, x: Any) -> Any:
    """What the classifier makes of the rows."""
    return read_rows(model, x, new=False)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_matrix_is_not_copied(dtype: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.astype(dtype))
    for x in (X.astype(dtype), np.load(tmp_path / "x.npy", mmap_mode="r")):
        model = SlideClassifier(**FAST)
        for rows in (read_rows(model, x, new=True), rows_of(model.fit(x, Y), x)):
            assert isinstance(rows, DenseRows)
            assert np.shares_memory(rows.values, x)
            assert rows.is_mapped == isinstance(x, np.memmap)
        assert model.score(x, Y) > 0.4


def test_other_matrices_are_taken() -> None:
    expected = fitted(X).predict_topk(X, 3)[0]
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(COLUMNS)])
    for x in (np.asfortranarray(X), frame, X[::-1][::-1], X.tolist(), DenseRows(X)):
        assert (fitted(x).predict_topk(X if x is not frame else frame, 3)[0] == expected).mean() > 0.99
    assert (fitted(np.round(X * 3).astype(int)).predict(np.round(X * 3).astype(int)) == Y).mean() > 0.4


def test_a_matrix_of_zeros_is_taken_as_sparse() -> None:
    for dtype in (np.float32, np.float16):
        words = WORDS.toarray()[:, :50].astype(dtype)
        model = fitted(words)
        assert not isinstance(rows_of(model, words), DenseRows)
        assert model.network_.prior is not None


def test_a_network_without_hidden_layers() -> None:
    for options in ({}, {"unit_length": "both", "temperature": 0.1, "output_bias": False}):
        model = fitted(X, hidden=(), epochs=20, **options)
        assert model.network_.layers[0] is model.network_.output
        assert model.score(X, Y) > 0.4
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_allclose(again.decision_function(X), model.decision_function(X), rtol=1e-5, atol=1e-5)
        model.partial_fit(X, Y)


@pytest.mark.parametrize("words", [WORDS, TEXTS], ids=["matrix", "texts"])
def test_pairs_have_the_features_of_both(words: Any, tmp_path: Path) -> None:
    model = SlideClassifier(threads=1, epochs=10).fit((words, X), Y)
    assert model.score((words, X), Y) > 0.9
    model.save(tmp_path / "model")
    again = SlideClassifier.load(tmp_path / "model", trainable=True)
    np.testing.assert_allclose(again.predict_topk((words, X), 3)[1], model.predict_topk((words, X), 3)[1], rtol=1e-4)
    again.partial_fit((words, X), Y)
    for wrong in ((words, X[:, :-1]), (words, np.hstack([X, X]))):
        with pytest.raises(
            DataError, match=r"sparse features and \d+ dense ones, but there were \d+ and 20 in fitting"
        ):
            model.predict(wrong)
    if words is TEXTS:
        with pytest.raises(DataError, match="expected a pair of texts and dense rows"):
            model.predict(TEXTS)


def test_a_pair_may_be_rows_of_data() -> None:
    rows = read_rows(SlideClassifier(), (WORDS, X), new=True)
    assert isinstance(rows, MixedRows)
    model = SlideClassifier(**FAST).fit(rows, Y)
    assert model.n_features_in_ == 2020
    assert (model.predict(rows) == model.predict((WORDS, X))).all()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X[0], "Expected 2D array, got 1D array instead"),
        (X[:0], "Found array with 0 sample"),
        (np.where(X[3, 2] == X, np.nan, X), "Input X contains NaN"),
        (np.where(X[3, 2] == X, 1e300, X.astype(float)), "row 3, column 2: expected a finite 32-bit number, found inf"),
        (X[:-1], "399 rows of features but 400 rows of labels"),
        ((WORDS[:-1], X), "399 rows of sparse features but 400 of dense ones"),
        ((WORDS, np.where(X[3, 2] == X, np.inf, X)), "Input contains infinity"),
    ],
    ids=["flat", "empty", "nan", "large", "short", "pair", "infinite"],
)
def test_bad_rows_are_refused(x: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SlideClassifier(**FAST).fit(x, Y)


def test_another_width_is_refused() -> None:
    model = fitted(X)
    with pytest.raises(ValueError, match="X has 19 features, but SlideClassifier is expecting 20 features as input"):
        model.predict(X[:, 1:])
    with pytest.raises(DataError, match="dense rows have 19 features but the network was made for 20"):
        model.predict(DenseRows(np.ascontiguousarray(X[:, 1:])))
