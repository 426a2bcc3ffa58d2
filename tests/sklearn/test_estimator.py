"""SlideClassifier: scikit-learn's own checks, learning, labels of every kind, saving, clear errors."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import dslide
from dslide import Callback, Config, Dataset, SlideClassifier, SparseRows, Trainer
from dslide.cli import main
from dslide.errors import ConfigError, DataError, MemoryNeeded, ModelError

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
    monkeypatch.setattr("dslide.sklearn.ranks.BLOCK_BYTES", 4 * CLASSES * 7)
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


# ---- checkpoints -----------------------------------------------------------------------------------------


class Stop(Callback):
    """Presses Ctrl-C after some steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer: Any, info: Any) -> None:
        if info.step == self.step:
            raise KeyboardInterrupt


def same_state(a: SlideClassifier, b: SlideClassifier) -> None:
    assert a.trainer_.progress() == b.trainer_.progress()
    for name, array in a.network_.state().items():
        assert_array_equal(array, b.network_.state()[name], err_msg=name)


@pytest.mark.parametrize("output", ["full", "lsh"])
def test_an_interrupted_fit_resumes_to_the_same_bits(output: str, tmp_path: Path) -> None:
    names = np.array([f"class {n:02}" for n in range(CLASSES)])[Y[:, 0]]
    options = {**SMALL, "epochs": 3, "output": output, "rebuild_every": 7, "loss": "softmax"}
    whole = SlideClassifier(**options).fit(X, names)
    run, model = tmp_path / "run", SlideClassifier(**options)
    for stop, step in ((10, 10), (50, 50), (0, 114)):
        try:
            model.fit(X, names, out=run, callbacks=[Stop(stop)])
        except KeyboardInterrupt:
            assert stop
        assert model.trainer_.step == step
        same(SlideClassifier.load(run), model, X_TEST)  # the run is a model of the estimator
    same_state(model, whole)
    same(model, whole, X_TEST)
    assert {path.name for path in run.iterdir()} == {"checkpoints", "log.jsonl", "summary.json"}
    again = SlideClassifier(**options).fit(X, names, out=run)  # nothing is left to do
    same_state(again, whole)
    assert again.n_iter_ == 3


def test_a_killed_fit_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """Killed after a checkpoint was written in the background, and before the next."""
    program = """
import os, pickle, signal, sys, time
from dslide import Callback, SlideClassifier
class Kill(Callback):
    done = 0
    def on_checkpoint(self, trainer, step):
        self.done = trainer.step
    def on_step(self, trainer, info):
        if self.done and info.step > self.done + 5:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)
options, x, y = pickle.load(open(sys.argv[1], "rb"))
SlideClassifier(**options, checkpoint_seconds=0.05).fit(x, y, out=sys.argv[2], callbacks=[Kill()])
"""
    options, run = {**SMALL, "epochs": 10}, tmp_path / "run"
    (tmp_path / "given").write_bytes(pickle.dumps((options, X, Y[:, 0])))
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "given"), str(run)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (run / "summary.json").exists()
    model = SlideClassifier(**options).fit(X, Y[:, 0], out=run)
    starts = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines() if '"start"' in line]
    assert [start["step"] > 0 for start in starts] == [False, True]  # the second start resumed
    same_state(model, SlideClassifier(**options).fit(X, Y[:, 0]))


def test_other_data_and_other_options_are_not_resumed(tmp_path: Path) -> None:
    run, model = tmp_path / "run", SlideClassifier(**SMALL, epochs=1)
    model.fit(X, Y[:, 0], out=run)
    with pytest.raises(DataError, match=f"not the data that {run} was trained on"):
        model.fit(X_TEST, Y_TEST[:, 0], out=run)
    with pytest.raises(
        ConfigError, match="seed: the run was begun with 0, and on resuming only epochs, patience, learning_rate"
    ):
        SlideClassifier(**SMALL, epochs=1, seed=1).fit(X, Y[:, 0], out=run)
    model.set_params(epochs=2).fit(X, Y[:, 0], out=run)  # more epochs are welcome
    assert (model.n_iter_, model.trainer_.step) == (2, 76)
    with pytest.raises(ModelError, match="classes of type object can't be saved"):
        SlideClassifier(**SMALL).fit(X[:2], np.array([1, 2], object), out=tmp_path / "other")


# ---- scores ----------------------------------------------------------------------------------------------


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
    monkeypatch.setattr("dslide.sklearn.ranks.RESULT_BYTES", 300 * CLASSES * 4)
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


# ---- keeping ---------------------------------------------------------------------------------------------


def same(a: SlideClassifier, b: SlideClassifier, x: Any) -> None:
    assert a.get_params() == b.get_params()
    assert a.n_iter_ == b.n_iter_
    assert_array_equal(a.decision_function(x), b.decision_function(x))
    for one, two in zip(a.predict_topk(x, 3), b.predict_topk(x, 3), strict=True):
        assert_array_equal(one, two)
    one, two = a.predict(x), b.predict(x)
    assert type(one) is type(two)
    assert_array_equal(one.toarray() if sp.issparse(one) else one, two.toarray() if sp.issparse(two) else two)


@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy, copy.copy])
@pytest.mark.parametrize("output", ["full", "lsh"])
def test_copies_predict_alike_and_learn_apart(copied: Any, output: str) -> None:
    model = fitted(epochs=2, output=output)
    twin = copied(model)
    same(model, twin, X_TEST)
    before = model.decision_function(X_TEST)
    twin.partial_fit(X, Y[:, 0])
    assert_array_equal(model.decision_function(X_TEST), before)
    assert (model._label_counts.sum(), twin._label_counts.sum()) == (600, 1200)
    model.partial_fit(X, Y[:, 0])
    if output == "full":  # copies have newer hash tables than the original
        same(model, twin, X_TEST)
    unfitted = copied(SlideClassifier(epochs=3))
    assert unfitted.epochs == 3
    assert not hasattr(unfitted, "network_")


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_what_is_saved_comes_back(dense: bool, loss: str, tmp_path: Path) -> None:
    y = indicator(YM)
    model = SlideClassifier(**SMALL, epochs=3, loss=loss).fit(XM, y if dense else sp.csr_matrix(y))
    model.save(tmp_path / "m")
    loaded = SlideClassifier.load(tmp_path / "m")
    same(model, loaded, XM_TEST)
    same(model, pickle.loads(pickle.dumps(loaded)), XM_TEST)
    with pytest.raises(
        ModelError, match=r"loaded only to predict; load\(\.\.\., trainable=True\) opens it for training"
    ):
        loaded.partial_fit(XM, y)
    trainable = SlideClassifier.load(tmp_path / "m", trainable=True)
    same(model, trainable, XM_TEST)
    same(model.partial_fit(XM, y), trainable.partial_fit(XM, y), XM_TEST)
    loaded.save(tmp_path / "m")  # over the files that its arrays are mapped from
    with pytest.raises(ModelError, match="saved without the state that resuming needs"):
        SlideClassifier.load(tmp_path / "m", trainable=True)
    same(loaded, SlideClassifier.load(tmp_path / "m"), XM_TEST)


def test_names_of_features_are_checked_also_after_loading(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X.toarray(), columns=[f"f{i}" for i in range(X.shape[1])])
    model = SlideClassifier(**SMALL, epochs=1).fit(frame, Y[:, 0])
    model.save(tmp_path / "m")
    loaded = SlideClassifier.load(tmp_path / "m")
    assert_array_equal(loaded.feature_names_in_, model.feature_names_in_)
    assert_array_equal(loaded.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.predict(frame.rename(columns={"f0": "g"}))


def test_models_of_the_command_line_open_and_the_other_way_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"name{n:02}\tword{n:02} other{n:02} filler\n" for n in range(20)] * 20
    (tmp_path / "train.tsv").write_text("".join(lines))
    data, run = str(tmp_path / "train.tsv"), tmp_path / "run"
    options = ["--hidden", "16", "--batch-size", "16", "--learning-rate", "0.01", "--epochs", "15", "--quiet"]
    assert main(["train", data, "--out", str(run), *options]) == 0
    capsys.readouterr()
    model = SlideClassifier.load(run)
    assert (model.hidden, model.epochs, model.n_iter_) == ((16,), 15, 15)
    x = model.vectorizer_.transform(["word07 filler", "other11"])
    columns, _ = model.predict_topk(x, 1)
    assert [model.label_names_[c] for c in columns[:, 0]] == ["name07", "name11"]
    assert_array_equal(model.predict(x).indices, columns[:, 0])

    model.save(tmp_path / "again")  # with names and words
    for folder in (run, tmp_path / "again"):
        assert main(["predict", str(folder), data, "--k", "1"]) == 0
        assert capsys.readouterr().out.split()[:3] == ["name00", "name01", "name02"]
    assert SlideClassifier.load(tmp_path / "again").vectorizer_ == model.vectorizer_


def test_classes_that_no_text_stands_for_are_not_saved(tmp_path: Path) -> None:
    model = SlideClassifier(**SMALL, epochs=1).fit(X[:2], np.array([1, 2], object))
    with pytest.raises(ModelError, match="classes of type object can't be saved, only numbers and texts"):
        model.save(tmp_path / "m")


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


# ---- mistakes --------------------------------------------------------------------------------------------


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
