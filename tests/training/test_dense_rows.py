"""Training on dense rows, with defaults: it starts from a linear discriminant, and is no worse than simple methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from support.inprocess import run_ranks
from support.run_state import assert_same, state

import dslide
from dslide import Callback, Config, Network, SlideClassifier, ValidationInfo
from dslide.cli import main
from dslide.data import Dataset, SparseRows, load_tokens
from dslide.errors import ConfigError, DataError
from dslide.planner.memory import plan
from dslide.training.trainer import Trainer

Matrix = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]
OPTIONS: dict[str, Any] = {"threads": 1, "checkpoint_seconds": 0.0, "wire": "float32"}


def clusters(
    classes: int, rows: int, features: int, noise: float, of_class: int = 1, test: int = 2000, unit: bool = False
) -> tuple[Matrix, Classes, Matrix, Classes]:
    """Rows around `of_class` random means of each class, and test rows."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((classes, of_class, features))

    def make(labels: Classes) -> Matrix:
        some = means[labels, rng.integers(0, of_class, len(labels))]
        x = some + noise * rng.standard_normal((len(labels), features))
        return (x / np.linalg.norm(x, axis=1, keepdims=True) if unit else x).astype(np.float32)

    labels = rng.permutation(np.arange(rows) % classes)
    tested = rng.integers(0, classes, test)
    return make(labels), labels, make(tested), tested


def dataset(x: Matrix, labels: Classes) -> Dataset:
    y = sp.csr_matrix((np.ones(len(labels)), (np.arange(len(labels)), labels)))
    return Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y), source="made")


class Scores(Callback):
    """Remembers what was measured on held-out rows."""

    def __init__(self) -> None:
        self.scores: dict[int, float] = {}

    def on_validation(self, trainer: Any, info: ValidationInfo) -> None:
        self.scores[info.epoch] = info.metrics[info.metric]


# ---- how good it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [False, True])
def test_few_rows_of_a_class_are_enough(unit: bool) -> None:
    x, labels, new, true = clusters(1000, 5000, 64, noise=1.6, unit=unit)
    centroids = np.array([x[labels == label].mean(axis=0) for label in range(1000)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    nearest = ((new @ centroids.T).argmax(axis=1) == true).mean()
    assert 0.6 < nearest < 0.97
    assert SlideClassifier(threads=1).fit(x, labels).score(new, true) > nearest - 0.01


def test_training_makes_it_better_where_classes_are_not_clusters() -> None:
    x, labels, new, true = clusters(60, 9000, 32, noise=0.9, of_class=3)
    discriminant = LinearDiscriminantAnalysis().fit(x, labels).score(new, true)
    scores = Scores()
    found = SlideClassifier(threads=1).fit(x, labels, callbacks=[scores]).score(new, true)
    assert found > discriminant + 0.02
    assert max(scores.scores.values()) > scores.scores[0] + 0.01


def test_rows_with_several_labels_are_learned() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random((6000, 50)) < 0.06).astype(np.float32)
    x = (y @ rng.standard_normal((50, 64)) + rng.standard_normal((6000, 64)) * 0.7).astype(np.float32)
    x *= np.float32(10.0) ** np.linspace(-3, 3, 64, dtype=np.float32)
    model = SlideClassifier(threads=1).fit(x[:5000], sp.csr_matrix(y[:5000]))
    assert (model.network_.config.start, model.network_.config.loss) == ("discriminant", "sigmoid")
    some = y[5000:].any(axis=1)
    first = model.predict_topk(x[5000:][some], 1)[0][:, 0]
    assert (y[5000:][some][np.arange(some.sum()), first] > 0).mean() > 0.95


# ---- before the first step ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def few() -> Dataset:
    """Classes of 5 rows, which training can't tell more about."""
    return dataset(*clusters(1000, 5000, 24, noise=0.9)[:2])


@pytest.fixture(scope="module")
def many() -> Dataset:
    """Classes of several clusters, which training does tell more about."""
    return dataset(*clusters(60, 9000, 32, noise=0.9, of_class=3)[:2])


def test_where_training_is_no_better_the_start_of_all_rows_is_kept(few: Dataset, tmp_path: Path) -> None:
    scores = Scores()
    result = dslide.train(few, OPTIONS, out=tmp_path / "run", callbacks=[scores])
    assert result.summary["best_epoch"] == 0
    assert max(scores.scores.values()) <= scores.scores[0] + 0.15 / np.sqrt(250)
    network = Network(result.network.config, few.features, few.labels)
    network.set_discriminant(few)
    saved = state(tmp_path / "run")
    ids = np.arange(few.labels, dtype=np.int32)
    for name in ("layer0.weights", "layer0.bias"):  # of the same directions, though not to the last bit
        assert saved[name].shape == network.state()[name].shape
    found, expected = (each.scores(few.x.part(0, 50), ids) for each in (result.network, network))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)
    model = SlideClassifier(**OPTIONS).fit(few.x, few.y.to_scipy())
    assert_same({name: np.array(array) for name, array in model.network_.state().items()}, saved)


def test_where_training_is_better_its_network_is_kept(many: Dataset, tmp_path: Path) -> None:
    scores = Scores()
    result = dslide.train(many, OPTIONS, out=tmp_path / "run", callbacks=[scores])
    assert result.summary["best_epoch"] > 0
    assert list(scores.scores) == list(range(result.summary["epochs"] + 1))
    records = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records if record["record"] == "validation"] == list(scores.scores)


@pytest.mark.parametrize("which", ["few", "many"])
@pytest.mark.parametrize("step", [1, 30])
def test_an_interrupted_run_ends_with_the_same_network(
    which: str, step: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data: Dataset = request.getfixturevalue(which)

    class Stop(Callback):
        def on_step(self, trainer: Any, info: Any) -> None:
            if info.step == step:
                raise KeyboardInterrupt

    whole = dslide.train(data, OPTIONS, out=tmp_path / "whole")
    assert dslide.train(data, OPTIONS, out=tmp_path / "run", callbacks=[Stop()]).interrupted
    resumed = dslide.resume(tmp_path / "run", data)
    assert resumed.summary["best_epoch"] == whole.summary["best_epoch"]
    assert_same(state(tmp_path / "run"), state(tmp_path / "whole"))


def test_training_goes_on_without_the_held_out_rows(few: Dataset, tmp_path: Path) -> None:
    scores = Scores()
    first = dslide.train(few, OPTIONS | {"epochs": 2}, out=tmp_path / "run", callbacks=[scores])
    again = dslide.train(few, OPTIONS | {"epochs": 2}, out=tmp_path / "run", resume_existing=True)
    assert again.summary["best_epoch"] == 0
    before = state(tmp_path / "run")
    more = dslide.resume(tmp_path / "run", few, epochs=4, callbacks=[scores])
    assert more.summary["steps"] > first.summary["steps"]
    # a network that had seen the held-out rows would have told them apart without mistakes
    assert max(scores.scores[epoch] for epoch in scores.scores if epoch > 2) < scores.scores[0] + 0.02 < 0.98
    assert more.summary["best_epoch"] == 0
    np.testing.assert_array_equal(state(tmp_path / "run")["layer1.weights"], before["layer1.weights"])


def test_the_command_says_that_the_start_is_kept(
    few: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    y = sp.csr_matrix(few.y.to_scipy())
    lines = [f"{len(few)} {few.features} {few.labels}"]
    for row in range(len(few)):
        values = few.x.values[row * few.features : (row + 1) * few.features]
        lines.append(f"{y.indices[row]} " + " ".join(f"{i}:{v:g}" for i, v in enumerate(values)))
    (tmp_path / "data.txt").write_text("\n".join(lines) + "\n")
    assert main(["train", str(tmp_path / "data.txt"), "--out", str(tmp_path / "run"), "--threads", "1"]) == 0
    out, _ = capfd.readouterr()
    assert "the linear discriminant of all rows is kept: training made it no better on the held-out rows" in out


def test_ranks_decide_alike(many: Dataset, few: Dataset, tmp_path: Path) -> None:
    for name, data in (("many", many), ("few", few)):
        one = dslide.train(data, OPTIONS | {"epochs": 2}, out=tmp_path / f"{name}1")

        def train(comm: Any, name: str = name, data: Dataset = data) -> tuple[dict[str, Any], Any]:
            result = dslide.train(data, OPTIONS | {"epochs": 2}, out=tmp_path / f"{name}3", comm=comm)
            return result.summary, result.network.predict_topk(data.x.part(0, 300), 3)[1]

        expected = one.network.predict_topk(data.x.part(0, 300), 3)[1]
        for summary, scores in run_ranks(3, train):
            assert summary["best_epoch"] == one.summary["best_epoch"]
            np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-2)


# ---- what it can't do -----------------------------------------------------------------------------------------------


def test_other_data_is_refused(tmp_path: Path) -> None:
    wide = SparseRows.from_scipy(sp.csr_matrix(np.eye(30, 5000, dtype=np.float32)))
    y = SparseRows.from_scipy(sp.csr_matrix(np.eye(30, dtype=np.float32)))
    config = Config(start="discriminant", threads=1)
    with pytest.raises(DataError, match="wide: start = discriminant is for rows of at most 4,096 features with labels"):
        Trainer(config, 5000, 30).fit(Dataset(wide, y, source="wide"))
    (tmp_path / "words.txt").write_text("one two three four five six seven eight nine ten " * 20)
    words = load_tokens(tmp_path / "words.txt")
    with pytest.raises(DataError, match=r"words.txt: start = discriminant is for rows"):
        Trainer(config, words.features, words.labels).fit(words)


def test_it_needs_all_rows_at_once() -> None:
    x, labels, _, _ = clusters(3, 30, 20, noise=0.1)
    with pytest.raises(ConfigError, match="start = discriminant needs all rows at once: use fit"):
        SlideClassifier(start="discriminant").partial_fit(x, labels, classes=[0, 1, 2])
    assert SlideClassifier(threads=1).partial_fit(x, labels, classes=[0, 1, 2]).network_.config.start == "random"


def test_its_memory_is_planned() -> None:
    options = {"hidden": (64,), "validation": 0.05, "prior_labels": 0}
    random, found = (
        plan(Config(start=start, **options), 1000, 50_000, 10**9, rows=10**6, labels_per_row=1).parts
        for start in ("random", "discriminant")
    )
    assert random["linear discriminant"] == 0
    assert found["linear discriminant"] > 10**9 + 8 * 1000**2 + 4 * 64 * 50_000
