"""Weights of rows: how often rows are trained on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from dslide import SlideClassifier
from dslide.config import Config
from dslide.data import Dataset, SparseRows, write_dataset
from dslide.errors import DataError
from dslide.training.early_stopping import hold_out_rows
from dslide.training.trainer import Trainer

OPTIONS: dict[str, Any] = {"hidden": (8,), "epochs": 3, "threads": 1, "validation": 0.0}


def rows(count: int, seed: int = 0) -> tuple[sp.csr_matrix, Any]:
    random = np.random.default_rng(seed)
    return sp.random(count, 12, 0.4, "csr", np.float32, random), random.integers(0, 4, count)


def state(model: SlideClassifier) -> list[bytes]:
    return [array.tobytes() for _, array in sorted(model.network_.state().items())]


def test_weights_that_are_all_alike_change_nothing() -> None:
    x, y = rows(60)
    plain = SlideClassifier(**OPTIONS).fit(x, y)
    assert state(SlideClassifier(**OPTIONS).fit(x, y, sample_weight=np.full(60, 0.1))) == state(plain)
    passes = [
        SlideClassifier(**OPTIONS).partial_fit(x, y, classes=range(4), sample_weight=w) for w in (None, np.ones(60))
    ]
    assert state(passes[0]) == state(passes[1])


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_a_row_of_weight_2_is_there_twice_and_one_of_weight_0_never(loss: str) -> None:
    x, y = rows(60)
    weights = np.arange(60) % 2 * 2  # a mean of 1
    expected = SlideClassifier(loss=loss, **OPTIONS).fit(*(part[np.repeat(np.arange(60), weights)] for part in (x, y)))
    assert state(SlideClassifier(loss=loss, **OPTIONS).fit(x, y, sample_weight=weights)) == state(expected)
    tripled = SlideClassifier(loss=loss, **OPTIONS).fit(x, y, sample_weight=3 * weights)
    assert state(tripled) == state(expected)


def test_the_gradient_is_that_of_the_weighted_loss_on_average() -> None:
    """Plain gradient descent with one step of all rows in an epoch: the mean of many epochs' first steps."""
    x, y = rows(30)
    random = np.random.default_rng(1)
    weights = random.random(30) * 2
    one_hot = SparseRows.from_scipy(sp.csr_matrix(np.eye(4, dtype=np.float32)[y]))
    data = Dataset(SparseRows.from_scipy(x), one_hot, row_weights=weights)
    config = Config(
        hidden=(8,), optimizer="sgd", learning_rate=1.0, batch_size=1000, threads=1, validation=0.0, output="full",
        prior_labels=0, dropout_input=0.0, dropout_hidden=0.0, loss="softmax",
    )  # fmt: skip

    def gradient(of: Dataset, number: int) -> np.ndarray:
        """Of weights and biases, summed over rows: SGD of rate 1 steps along the mean."""
        trainer = Trainer(config, 12, 4)
        arrays = {name: a for name, a in sorted(trainer.network.state().items()) if name.endswith(("weights", "bias"))}
        before = [array.copy() for array in arrays.values()]
        trainer.step = number
        trainer.fit_pass(of)
        after = trainer.network.state()
        steps = [old - after[name] for old, name in zip(before, arrays, strict=True)]
        return np.concatenate([step.ravel() for step in steps]) * trainer.samples

    each = [gradient(dataclasses.replace(data.take(np.array([i])), row_weights=None), 0) for i in range(30)]
    assert sum(np.any(part != 0) for part in each) == 30
    expected = sum(weight * of_row for weight, of_row in zip(weights, each, strict=True))
    drawn = np.mean([gradient(data, number) for number in range(300)], axis=0)
    unweighted = sum(each)
    assert np.linalg.norm(drawn - expected) < 0.1 * np.linalg.norm(expected)
    assert np.linalg.norm(unweighted - expected) > 0.3 * np.linalg.norm(expected)  # else this could not fail


def test_rows_that_count_more_are_learned_better() -> None:
    """The same rows with two answers: the weight decides."""
    x, _ = rows(40)
    both, y = sp.vstack([x, x], "csr"), np.repeat([0, 1], 40)
    for favoured in (0, 1):
        model = SlideClassifier(hidden=(8,), threads=1, epochs=5).fit(both, y, sample_weight=1 + 9 * (y == favoured))
        assert (model.predict(x) == favoured).mean() > 0.9


def test_held_out_rows_are_no_copies_of_those_trained_on() -> None:
    x, _ = rows(200)
    weights = np.random.default_rng(0).integers(1, 4, 200)
    data = Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(sp.eye(200, format="csr")), row_weights=weights)
    train, validation = hold_out_rows(data, 0.25, 0)
    assert validation is not None
    assert not set(train.y.indices) & set(validation.y.indices)
    assert np.bincount(validation.y.indices, minlength=200).tolist() == [
        0 if i in set(train.y.indices) else w for i, w in enumerate(weights)
    ]


def test_pipelines_runs_and_grown_models_take_weights(tmp_path: Path) -> None:
    texts, y = ["red fish", "blue house", "red house", "blue fish"] * 5, ["a", "b"] * 10
    weights = np.arange(20) % 3
    pipe = make_pipeline(TfidfVectorizer(), SlideClassifier(**OPTIONS))
    pipe.fit(texts, y, slideclassifier__sample_weight=weights)
    x = pipe[0].transform(texts)
    run = SlideClassifier(**OPTIONS).fit(x, y, out=tmp_path / "run", sample_weight=weights)
    assert state(run) == state(pipe[-1])
    with pytest.raises(DataError, match="not the data that"):
        SlideClassifier(**OPTIONS).fit(x, y, out=tmp_path / "run", sample_weight=weights + 1)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"weights of rows: expected 60, one for each row, not an array of shape \(3,\)"),
        (-np.ones(60), "weights of rows: expected 0 to 1e[+]06, but row 0 has -1"),
        (np.full(60, np.nan), "weights of rows: expected 0 to 1e[+]06, but row 0 has nan"),
        (np.zeros(60), "sample_weight: the weights of all rows are zero"),
        (["x"] * 60, "weights of rows: expected numbers"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        SlideClassifier(**OPTIONS).fit(*rows(60), sample_weight=weights)


def test_weights_are_not_lost_without_a_word(tmp_path: Path) -> None:
    eye = SparseRows.from_scipy(sp.eye(3, format="csr"))
    with pytest.raises(DataError, match="weights of rows can't be written"):
        write_dataset(Dataset(eye, eye, row_weights=np.ones(3)), tmp_path / "out")
