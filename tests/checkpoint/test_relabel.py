"""Labels removed from a saved model, and renamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import dslide
from dslide import SlideClassifier
from dslide.cli import main
from dslide.data import Dataset, SparseRows
from dslide.errors import DataError


@pytest.fixture(scope="module", params=["full", "lsh"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 60 named labels, with a label prior, linear classifiers and calibration."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 60, 4500)
    x = sp.csr_matrix((np.ones(9000), (np.repeat(np.arange(4500), 2), np.stack([truth, 60 + truth % 7], 1).ravel())))
    y = sp.csr_matrix((np.ones(4500), (np.arange(4500), truth)))
    names = [f"name {i}" for i in range(60)]
    data = Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y), names)
    folder = tmp_path_factory.mktemp("relabel") / "run"
    dslide.train(data, out=folder, output=request.param, epochs=2, threads=1, hidden=(12,))
    return folder


def test_what_is_left_is_scored_as_before(trained: Path, tmp_path: Path) -> None:
    removed, kept = tmp_path / "removed.txt", [i for i in range(60) if i % 3]
    removed.write_text("".join(f"name {i}\n" for i in range(60) if i % 3 == 0))
    (tmp_path / "renamed.txt").write_text("name 1\tone\nname 2\ttwo words\n")
    out = tmp_path / "out"
    files = ["--remove", str(removed), "--rename", str(tmp_path / "renamed.txt")]
    assert main(["relabel", str(trained), str(out), *files]) == 0
    before, after = dslide.open_model(trained), dslide.open_model(out)
    assert after.saved.label_names is not None
    assert after.saved.label_names[:4] == ["one", "two words", "name 4", "name 5"]
    assert after.saved.labels == 40
    x = SparseRows.from_scipy(sp.random(50, 67, 0.1, "csr", np.float32, random_state=1))
    everything = np.arange(60, dtype=np.int32)
    scores = before.network.scores(x, everything)[:, kept]
    np.testing.assert_allclose(after.network.scores(x, np.arange(40, dtype=np.int32)), scores, rtol=1e-5)
    ids, _best = after.network.predict_topk(x, 3)
    exclude = SparseRows.from_scipy(np.tile(everything % 3 == 0, (50, 1)).astype(np.float32))
    expected, _ = before.network.predict_topk(x, 3, exclude)
    assert np.mean(np.array(kept)[ids] == expected) > 0.95
    after.network.predict_topk_approximate(x, 3)


def test_training_goes_on_from_it(trained: Path, tmp_path: Path) -> None:
    dslide.relabel(trained, tmp_path / "less", remove=["name 0"])
    model = SlideClassifier.load(tmp_path / "less", trainable=True)
    assert model.classes_[0] == "name 1"
    assert len(model.classes_) == 59
    y = sp.csr_matrix(np.eye(59)[[3, 4]])
    model.partial_fit(sp.csr_matrix(np.eye(67, dtype=np.float32)[[3, 4]]), y)


def test_classes_of_texts_may_become_longer(tmp_path: Path) -> None:
    model = SlideClassifier(epochs=1, hidden=(4,), threads=1).fit(np.eye(3), ["a", "b", "c"])
    model.save(tmp_path / "model")
    dslide.relabel(tmp_path / "model", tmp_path / "out", rename={"b": "a longer name"})
    assert SlideClassifier.load(tmp_path / "out").classes_.tolist() == ["a", "a longer name", "c"]


def test_mistakes_are_named(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no label 'other' to be removed or renamed"):
        dslide.relabel(trained, tmp_path / "never", remove=["other"])
    with pytest.raises(DataError, match="two labels would have the same name"):
        dslide.relabel(trained, tmp_path / "never", rename={"name 1": "name 2"})
    with pytest.raises(DataError, match="no label would be left"):
        dslide.relabel(trained, tmp_path / "never", remove=[f"name {i}" for i in range(60)])
    with pytest.raises(DataError, match="exists already"):
        dslide.relabel(trained, tmp_path, remove=["name 1"])
