"""Pipelines, cross-validation with sparse labels, and searches in several processes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.utils._param_validation import InvalidParameterError

from dslide import SlideClassifier
from dslide.util.threads import available_cores, openmp_threads

MODEL = SlideClassifier(hidden=(8,), epochs=3, loss="softmax")


def rows() -> tuple[sp.csr_matrix, sp.csr_matrix]:
    random = np.random.default_rng(0)
    y = sp.csr_matrix(np.eye(5, dtype=np.float32)[random.integers(0, 5, 60)])
    return sp.csr_matrix(y @ random.random((5, 20)) + random.random((60, 20)) / 4), y


def test_parts_of_a_pipeline_work_alone() -> None:
    texts, names = ["red fish", "blue house"] * 20, ["a", "b"] * 20
    pipe = Pipeline([("words", TfidfVectorizer()), ("labels", MODEL)]).fit(texts, names)
    x = pipe[:-1].transform(texts)
    assert pipe["labels"] is pipe[-1]
    assert pipe[-1].predict(x).tolist() == pipe.predict(texts).tolist() == names
    assert pipe[1:].predict(x).tolist() == names
    assert pipe[-1].predict_topk(x, k=1)[0][:, 0].tolist() == names
    assert clone(pipe).fit(texts, names)[-1].classes_.tolist() == ["a", "b"]


def test_sparse_labels_are_cross_validated_by_an_empty_search() -> None:
    """scikit-learn's cross_val_score refuses a sparse y before any estimator sees it; the guide says what to do."""
    x, y = rows()
    model = clone(MODEL).set_params(threads=1)
    with pytest.raises(InvalidParameterError, match="'y' parameter of cross_val_score must be an array-like"):
        cross_val_score(model, x, y)
    found = GridSearchCV(model, {}, cv=KFold(3), error_score="raise").fit(x, y).cv_results_
    by_hand = [
        clone(model).fit(x[train], y[train]).score(x[test], y[test]) for train, test in KFold(3).split(np.zeros(60))
    ]
    assert [found[f"split{i}_test_score"][0] for i in range(3)] == pytest.approx(by_hand)
    dense = cross_val_score(model, x, y.toarray(), cv=KFold(3), error_score="raise")
    assert dense.tolist() == pytest.approx(by_hand)


def _fitted_with() -> tuple[int, int]:
    """Threads that joblib allows this process, and those that a model is trained with."""
    trainer = clone(MODEL).fit(*rows()).trainer_
    assert trainer is not None
    return openmp_threads(), trainer.config.threads


def test_processes_of_a_search_share_the_cores() -> None:
    allowed, used = zip(*Parallel(n_jobs=2)(delayed(_fitted_with)() for _ in range(2)), strict=True)
    assert used == allowed
    assert set(allowed) == {max(1, available_cores() // 2)}
    x, y = rows()
    grids = [GridSearchCV(MODEL, {"epochs": [1, 3]}, cv=2, n_jobs=jobs).fit(x, y) for jobs in (1, 2)]
    assert grids[0].best_params_ == grids[1].best_params_
