"""What a fitted classifier predicts: scores, best labels, without excluded ones, refused sizes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal
from support.classifiers import CLASSES, SMALL, X_TEST, XM, YM, X, Y, fitted, indicator, planted

from dslide import SlideClassifier
from dslide.errors import DataError, MemoryNeeded


def test_decision_gives_columns_of_decision_function() -> None:
    names = np.array([f"class {n:02}" for n in range(CLASSES)])
    model = SlideClassifier(**SMALL, epochs=3).fit(X, names[Y[:, 0]])
    scores = model.decision_function(X_TEST)
    assert scores.shape == (300, CLASSES)
    chosen = [7, 3, 7, 29]
    assert_array_equal(model.decision(X_TEST, names[chosen]), scores[:, chosen])
    assert_array_equal(names[scores.argmax(axis=1)], model.predict(X_TEST))
    np.testing.assert_allclose(
        np.log(model.predict_proba(X_TEST)), scores - np.logaddexp.reduce(scores, 1)[:, None], rtol=1e-5
    )


def test_topk_ranks_all_labels() -> None:
    names = np.array([f"class {n:02}" for n in range(CLASSES)])
    model = SlideClassifier(**SMALL, epochs=3).fit(X, names[Y[:, 0]])
    scores = model.decision_function(X_TEST)
    order = np.argsort(-scores, axis=1, kind="stable")
    labels, best = model.predict_topk(X_TEST, k=4)
    assert_array_equal(labels, names[order[:, :4]])
    np.testing.assert_allclose(best, np.take_along_axis(scores, order[:, :4], 1), rtol=1e-4, atol=1e-5)
    everything, _ = model.predict_topk(X_TEST, k=CLASSES)
    assert_array_equal(np.sort(everything, axis=1), np.tile(names, (300, 1)))


def test_approximate_topk_finds_most_and_never_leaves_gaps() -> None:
    x, y = planted(4000, seed=5, classes=400)
    model = SlideClassifier(**{**SMALL, "hidden": (32,), "batch_size": 256}, epochs=8, output="lsh").fit(x, y[:, 0])
    exact, scores = model.predict_topk(x[:500], k=3)
    quick, quick_scores = model.predict_topk(x[:500], k=3, approximate=True)
    assert np.mean(exact[:, 0] == quick[:, 0]) > 0.9
    found = np.isclose(scores[:, 0], quick_scores[:, 0], rtol=1e-4)
    assert np.mean(found) > 0.9
    everything, _ = model.predict_topk(x[:20], k=400, approximate=True)  # more than hashing finds
    assert_array_equal(np.sort(everything, axis=1), np.tile(np.arange(400), (20, 1)))


@pytest.mark.parametrize("approximate", [False, True])
def test_topk_without_excluded_labels(approximate: bool) -> None:
    model = SlideClassifier(**SMALL, epochs=2).fit(XM, sp.csr_matrix(indicator(YM)))
    everything, scores = model.predict_topk(X_TEST, k=CLASSES)
    gone = np.zeros((300, CLASSES))
    gone[np.arange(300), everything[:, 0]] = 0.5  # every row's best one
    gone[7] = 1
    gone[7, 3] = 0
    exclude = sp.csr_matrix(gone)
    exclude[5, everything[5, 0]] = 0  # stored, but none
    labels, best = model.predict_topk(X_TEST, k=3, exclude=exclude, approximate=approximate)
    assert labels[7].tolist() == [3, -1, -1]
    assert labels[5, 0] == everything[5, 0]
    others = np.delete(np.arange(300), [5, 7])
    assert (labels[others] != everything[others, :1]).all()
    if not approximate:
        assert_array_equal(labels[others], everything[others, 1:4])
        np.testing.assert_allclose(best[others], scores[others, 1:4], rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match="exclude: expected 300 rows and 30 columns, not 299 and 30"):
        model.predict_topk(X_TEST, exclude=gone[1:])
    with pytest.raises(DataError, match="exclude: row 0, column 1: expected a finite"):
        model.predict_topk(X_TEST, exclude=np.where(np.arange(CLASSES) == 1, np.nan, gone))


def test_excluding_too_many_classes_is_refused() -> None:
    names = np.array([f"class {n:02}" for n in range(CLASSES)])
    model = SlideClassifier(**SMALL, epochs=1).fit(X, names[Y[:, 0]])
    gone = np.zeros((300, CLASSES))
    gone[4, 2:] = 1
    assert set(model.predict_topk(X_TEST, k=2, exclude=gone)[0][4]) == {"class 00", "class 01"}
    with pytest.raises(DataError, match="exclude: it leaves fewer than k classes for row 4"):
        model.predict_topk(X_TEST, k=3, exclude=gone)


def test_large_results_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(epochs=1)
    dense = SlideClassifier(**SMALL, epochs=1).fit(XM, indicator(YM))
    monkeypatch.setattr("dslide.sklearn.prediction.RESULT_BYTES", 300 * CLASSES * 4)
    assert model.decision_function(X_TEST).nbytes == 300 * CLASSES * 4  # just fits
    with pytest.raises(MemoryNeeded, match=r"300 rows and 30 labels would take 72 KB.*use predict_topk"):
        model.predict_proba(X_TEST)
    with pytest.raises(MemoryNeeded, match=r"600 rows and 30 labels would take 72 KB.*use predict_topk"):
        model.decision_function(X)
    with pytest.raises(MemoryNeeded, match="give fewer rows or labels at a time"):
        model.decision(X, np.arange(CLASSES))
    with pytest.raises(MemoryNeeded, match="fitted with a sparse y predicts sparse rows"):
        dense.predict(XM)
    assert model.decision(X, [3]).shape == (600, 1)


def test_a_network_beyond_memory_is_refused_before_it_is_made() -> None:
    x = sp.csr_matrix(([1.0, 1.0], ([0, 1], [0, 2**31 - 2])), shape=(2, 2**31 - 1))
    with pytest.raises(MemoryNeeded, match=r"training a network with 2,147,483,647 features.* needs about .* TB"):
        SlideClassifier(hidden=(1024,)).fit(x, [0, 1])
