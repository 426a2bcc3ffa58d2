"""SlideClassifier: scikit-learn's own checks and tools, options, learning."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from support.classifiers import CLASSES, SMALL, X_TEST, XM, XM_TEST, Y_TEST, YM, YM_TEST, X, Y, fitted, indicator

from dslide import Callback, Config, Dataset, SlideClassifier, SparseRows, Trainer
from dslide.errors import ConfigError, DataError

# Rows with a weight are trained on more often, in another order than copies of them are.
NOT_EQUIVALENT = "check_sample_weight_equivalence_on_{}_data"
REASON = "training in batches depends on the order of rows"


@parametrize_with_checks(
    [
        SlideClassifier(**SMALL, epochs=30),
        SlideClassifier(**SMALL, epochs=30, loss="sigmoid"),
        SlideClassifier(**SMALL, epochs=30, output="lsh", hidden_share=(0.75,), active_sets="row"),
    ],
    expected_failed_checks=lambda _: {NOT_EQUIVALENT.format(kind): REASON for kind in ("dense", "sparse")},
)
def test_scikit_learn_checks(estimator: SlideClassifier, check: Any) -> None:
    check(estimator)


# ---- options ---------------------------------------------------------------------------------------------


def test_the_signature_is_that_of_config() -> None:
    parameters = inspect.signature(SlideClassifier).parameters
    options = {field.name: field.default for field in dataclasses.fields(Config)}
    assert {name: p.default for name, p in parameters.items()} == {**options, "verbose": False, "vectorizer": None}
    assert list(parameters)[:-2] == list(options)
    assert all(p.kind == inspect.Parameter.KEYWORD_ONLY for p in parameters.values())
    text = SlideClassifier.__doc__ or ""
    for name, p in parameters.items():
        assert f"    {name} : " in text
        assert f"default={p.default!r}" in text


def test_params_are_got_and_set() -> None:
    model = SlideClassifier(hidden=(8, 4), seed=3)
    assert model.get_params()["hidden"] == (8, 4)
    assert model.set_params(epochs=2, verbose=True) is model
    assert (model.epochs, model.verbose) == (2, True)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ValueError, match="Invalid parameter 'epoch'"):
        model.set_params(epoch=2)


def test_options_are_checked_in_fit() -> None:
    with pytest.raises(ConfigError, match="loss: expected one of auto, softmax, sigmoid, not 'hinge'"):
        SlideClassifier(loss="hinge").fit(X, Y[:, 0])


# ---- learning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["full", "lsh", "random"])
def test_a_planted_problem_is_learned(output: str) -> None:
    model = fitted(epochs=10, output=output, random_negatives=10)
    assert model.score(X_TEST, Y_TEST[:, 0]) > 0.9
    assert (model.n_iter_, model.n_features_in_) == (10, 600)
    assert_array_equal(model.classes_, np.arange(CLASSES))


@pytest.mark.parametrize("kind", ["list", "U", "object", "int8", "uint64", "float64", "bool", "SparseRows", "column"])
def test_labels_of_every_kind_come_back_also_from_disk(kind: str, tmp_path: Path) -> None:
    numbers = Y[:, 0]
    y: Any = numbers
    if kind in ("list", "U", "object"):
        y = np.array([f"Ärzte {n}" for n in numbers], None if kind == "list" else kind)
    elif kind == "uint64":
        y = numbers.astype(np.uint64) + np.uint64(2**64 - 100)
    elif kind == "bool":
        y = numbers % 2 == 0
    elif kind in ("int8", "float64"):
        y = (numbers - 5).astype(kind)
    given = y.tolist() if kind == "list" else y[:, None] if kind == "column" else y
    x: Any = SparseRows.from_scipy(X) if kind == "SparseRows" else X
    model = SlideClassifier(**SMALL, epochs=10)
    if kind == "column":
        with pytest.warns(UserWarning, match="A column-vector y was passed"):
            model.fit(x, given)
    else:
        model.fit(x, given)
    predicted = model.predict(x)
    assert predicted.dtype == y.dtype
    assert model.score(x, given if kind != "column" else y) == np.mean(predicted == y) > 0.95
    assert_array_equal(model.classes_, np.unique(y))
    model.save(tmp_path / "m")
    loaded = SlideClassifier.load(tmp_path / "m")
    assert loaded.classes_.dtype == model.classes_.dtype
    assert_array_equal(loaded.predict(x), predicted)


def test_dense_and_sparse_rows_are_the_same() -> None:
    model = fitted(epochs=2)
    wanted = model.decision_function(X_TEST)
    for other in (X.toarray(), sp.csc_matrix(X), sp.coo_array(X), SparseRows.from_scipy(X)):
        again = SlideClassifier(**SMALL, epochs=2).fit(other, Y[:, 0])
        for test in (X_TEST.toarray(), sp.csc_matrix(X_TEST), SparseRows.from_scipy(X_TEST)):
            assert_array_equal(again.decision_function(test), wanted)


def test_it_is_the_trainer_that_trains() -> None:
    model = fitted(epochs=3)
    trainer = Trainer(Config(**SMALL, epochs=3), 600, CLASSES)
    trainer.fit(Dataset(SparseRows.from_scipy(X), SparseRows.from_scipy(indicator(Y))))
    for name, array in trainer.network.state().items():
        assert_array_equal(array, model.network_.state()[name])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("output", ["full", "lsh"])
def test_the_same_seed_gives_the_same_bits(threads: int, output: str) -> None:
    options: dict[str, Any] = {"epochs": 2, "threads": threads, "output": output, "dropout_hidden": 0.2}
    one, two, other = fitted(**options), fitted(**options), fitted(**options, seed=1)
    for name, array in one.network_.state().items():
        assert_array_equal(array, two.network_.state()[name])
    assert not np.array_equal(one.decision_function(X_TEST), other.decision_function(X_TEST))


def test_softmax_predicts_as_many_labels_as_training_rows_have() -> None:
    model = SlideClassifier(**SMALL, epochs=10, loss="softmax").fit(XM, sp.csr_matrix(indicator(YM)))
    found = model.predict(XM_TEST)
    assert sp.issparse(found)
    assert found.format == "csr"
    assert found.has_canonical_format
    assert_array_equal(found.sum(axis=1), np.full((200, 1), 3))
    hits = found.multiply(indicator(YM_TEST)).sum() / found.nnz
    assert hits > 0.9
    assert model.score(XM_TEST, indicator(YM_TEST)) > 0.95
    assert model.score(XM_TEST, sp.csr_matrix(indicator(YM_TEST))) > 0.95


def test_sigmoid_predicts_labels_above_one_half() -> None:
    y = indicator(YM)
    model = SlideClassifier(**SMALL, epochs=15, loss="sigmoid").fit(XM, y)
    found = model.predict(XM_TEST)
    assert isinstance(found, np.ndarray)  # as y was
    assert_array_equal(found, model.predict_proba(XM_TEST) > 0.5)
    assert_array_equal(found, model.decision_function(XM_TEST) > 0)
    assert np.mean(found == indicator(YM_TEST)) > 0.97


def test_rows_are_predicted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SlideClassifier(**SMALL, epochs=3, loss="sigmoid").fit(XM, sp.csr_matrix(indicator(YM)))
    whole = model.predict(XM_TEST)
    monkeypatch.setattr("dslide.sklearn.prediction.BLOCK_BYTES", 4 * CLASSES * 7)
    pieces = model.predict(XM_TEST)
    assert pieces.shape == whole.shape
    assert (pieces != whole).nnz == 0


def test_weights_of_labels_count() -> None:
    """Two labels always together: the one with three times the weight gets three times the probability."""
    x = sp.csr_matrix(np.ones((400, 1)))
    y = np.tile([3.0, 1.0, 0.0], (400, 1))
    model = SlideClassifier(**{**SMALL, "learning_rate": 0.05}, epochs=20, loss="softmax").fit(x, y)
    np.testing.assert_allclose(model.predict_proba(x[:1]), [[0.75, 0.25, 0]], atol=0.02)
    assert_array_equal(model.predict(x[:1]), [[1, 1, 0]])


def test_rows_without_labels_are_no_obstacle() -> None:
    y = indicator(YM)
    y[::2] = 0
    model = SlideClassifier(**SMALL, epochs=10, loss="softmax").fit(XM, sp.csr_matrix(y))
    assert_array_equal(model.predict(XM_TEST).sum(axis=1), np.full((200, 1), 2))  # 1.5, rounded
    assert model.score(XM_TEST, indicator(YM_TEST)) > 0.9


def test_partial_fit_continues_learning() -> None:
    model = SlideClassifier(**SMALL)
    scores = []
    for _ in range(8):
        model.partial_fit(X, Y[:, 0], classes=np.arange(CLASSES))
        scores.append(model.score(X_TEST, Y_TEST[:, 0]))
    assert scores[0] < 0.7
    assert scores[-1] > 0.9
    assert model.n_iter_ == 8
    assert model.trainer_.samples == 8 * 600
    model.set_params(learning_rate=0.001, batch_size=600, threads=2).partial_fit(X, Y[:, 0])
    assert model.score(X_TEST, Y_TEST[:, 0]) > 0.9
    assert model.trainer_.step == 8 * 38 + 1


def test_partial_fit_after_fit_and_with_many_labels() -> None:
    model = SlideClassifier(**SMALL, epochs=1).fit(XM, sp.csr_matrix(indicator(YM)))
    before = model.score(XM_TEST, indicator(YM_TEST))
    for _ in range(5):
        model.partial_fit(XM, sp.csr_matrix(indicator(YM)))
    assert model.score(XM_TEST, indicator(YM_TEST)) > before
    new = SlideClassifier(**SMALL).partial_fit(XM, indicator(YM))
    assert_array_equal(new.classes_, np.arange(CLASSES))


def test_partial_fit_mistakes() -> None:
    with pytest.raises(DataError, match="classes must be passed on the first call to partial_fit"):
        SlideClassifier(**SMALL).partial_fit(X, Y[:, 0])
    model = fitted(epochs=1)
    with pytest.raises(DataError, match="label a is not one that the classifier was fitted with"):
        model.partial_fit(X[:2], ["a", "b"])
    with pytest.raises(DataError, match="was fitted with a 1-D y, but this one is 2-D"):
        model.partial_fit(X, indicator(Y))
    with pytest.raises(DataError, match="classes: some of those of earlier calls are missing"):
        model.partial_fit(X, Y[:, 0], classes=[1, 2])
    with pytest.raises(ConfigError, match=r"hidden: training began with \(16,\), and partial_fit can't continue"):
        model.set_params(hidden=(8,)).partial_fit(X, Y[:, 0])
    many = SlideClassifier(**SMALL).partial_fit(XM, indicator(YM))
    with pytest.raises(DataError, match="y: it has 29 columns, but fitting had 30"):
        many.partial_fit(XM, indicator(YM)[:, :-1])


def test_callbacks_are_called_and_ctrl_c_keeps_what_was_learned() -> None:
    class Stop(Callback):
        epochs = 0

        def on_epoch(self, trainer: Any, info: Any) -> None:
            self.epochs += 1
            if self.epochs == 3:
                raise KeyboardInterrupt

    model, stop = SlideClassifier(**SMALL, epochs=100), Stop()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y[:, 0], callbacks=[stop])
    assert stop.epochs == model.n_iter_ == 3
    assert model.score(X, Y[:, 0]) > 0.3


def test_verbose_prints_progress(capsys: pytest.CaptureFixture[str]) -> None:
    fitted(epochs=2, verbose=True)
    assert "epoch 2/2: loss" in capsys.readouterr().err
    fitted(epochs=1)
    assert capsys.readouterr().err == ""


def test_tools_of_scikit_learn_work() -> None:
    words = [f"word{i}" for i in range(X.shape[1])]
    texts = [" ".join(words[i] for i in X[row].indices) for row in range(X.shape[0])]
    names = np.array([f"class {n}" for n in Y[:, 0]])
    pipeline = make_pipeline(TfidfVectorizer(), SlideClassifier(**SMALL, epochs=8))
    pipeline.fit(texts, names)
    assert pipeline.score(texts, names) > 0.95
    assert pipeline.predict(texts[:2]).tolist() == names[:2].tolist()
    search = GridSearchCV(pipeline, {"slideclassifier__learning_rate": [1e-6, 0.01]}, cv=2, error_score="raise")
    search.fit(texts, names)
    assert search.best_params_ == {"slideclassifier__learning_rate": 0.01}


def test_tools_of_scikit_learn_work_with_many_labels() -> None:
    model, y = SlideClassifier(**SMALL, epochs=5, loss="softmax"), indicator(YM)
    search = GridSearchCV(model, {"epochs": [1, 5]}, cv=2, error_score="raise").fit(XM, sp.csr_matrix(y))
    assert search.best_params_ == {"epochs": 5}
    assert cross_val_score(model, XM, y, cv=2, error_score="raise").min() > 0.5
    assert cross_val_score(model, XM, y, cv=2, scoring="f1_micro", error_score="raise").min() > 0.4
