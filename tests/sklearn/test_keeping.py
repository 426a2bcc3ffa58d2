"""Copies, pickles and model folders of classifiers."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal
from support.classifiers import SMALL, X_TEST, XM, XM_TEST, YM, X, Y, fitted, indicator, same

from dslide import SlideClassifier
from dslide.cli import main
from dslide.errors import ModelError


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
