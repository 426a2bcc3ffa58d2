"""Neighbours in a training: when they are mixed in, on several ranks, saved, and removed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support.inprocess import run_ranks
from support.plain import PLAIN

import dslide
from dslide import CalibrationInfo, Config, Network, Trainer
from dslide.checkpoint.saved_model import SavedModel, save_model
from dslide.comm import Communicator
from dslide.data import Dataset, SparseRows
from dslide.errors import ModelError
from dslide.model import neighbours
from dslide.model.label_prior import NEIGHBOUR, PREFIX, LabelPrior, prior_arrays, regrouped
from dslide.model.neighbour_arrays import TYPES
from dslide.model.neighbours import Neighbours
from dslide.model.sharding import Shard
from dslide.training.calibration import calibrate

KINDS, LABELS = 12, 40
FEATURES = 2 * KINDS
OPTIONS: dict[str, Any] = {
    **PLAIN, "hidden": (24,), "batch_size": 64, "threads": 1, "epochs": 2, "loss": "sigmoid", "wire": "float32",
    "prior_labels": 20, "prior_scale": 1.0, "prior_power": 1.0, "prior_boost": 1.0, "linear_negatives": 20,
    "neighbours": 10,
}  # fmt: skip


def made(rows: int, seed: int, told: bool = True) -> Dataset:
    """Rows of two features, one of each half, which tell the label together: the sum of what each says does not."""
    rng = np.random.default_rng(seed)
    one, other = rng.integers(0, KINDS, (2, rows))
    table = np.random.default_rng(9).integers(0, LABELS, (KINDS, KINDS))
    truth = table[one, other] if told else rng.integers(0, LABELS, rows)
    columns = np.stack([one, KINDS + other], axis=1)
    x = sp.csr_matrix((np.ones(2 * rows), (np.repeat(np.arange(rows), 2), columns.ravel())), (rows, FEATURES))
    y = sp.csr_matrix((np.ones(rows), (np.arange(rows), truth)), (rows, LABELS))
    return Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y), source="made")


TRAIN, HELD_OUT, TEST = made(3000, 0), made(500, 1), made(300, 2)


def trained(comm: Communicator | None = None, data: Dataset = TRAIN, **changes: Any) -> tuple[Network, CalibrationInfo]:
    trainer = Trainer(Config(**OPTIONS | changes), FEATURES, LABELS, comm=comm)
    trainer.fit(TRAIN)
    return trainer.network, calibrate(trainer.network, HELD_OUT, TRAIN.label_counts, (5,), data)


@pytest.fixture(scope="module")
def network() -> Network:
    return trained()[0]


def hits(network: Network) -> float:
    ids, _ = network.predict_topk(TEST.x, 1)
    return float(np.mean(ids[:, 0] == TEST.y.indices))


@pytest.mark.parametrize("loss", ["sigmoid", "softmax"])
def test_neighbours_that_know_more_are_mixed_in(loss: str) -> None:
    network, info = trained(loss=loss)
    assert info.neighbours
    assert network.neighbours is not None
    without, info = trained(loss=loss, neighbours=0)
    assert not info.neighbours
    assert without.neighbours is None
    assert hits(network) > hits(without) + 0.2


def test_neighbours_whose_labels_say_nothing_are_not() -> None:
    """Classifiers and neighbours of rows whose labels are random."""
    network, info = trained(data=made(3000, 3, told=False))
    assert not info.neighbours
    assert network.neighbours is None


def test_scores_of_given_labels_are_those_of_the_best(network: Network) -> None:
    ids, best = network.predict_topk(TEST.x, 5)
    scores = network.scores(TEST.x, np.arange(LABELS, dtype=np.int32))
    np.testing.assert_allclose(best, np.take_along_axis(scores, ids, axis=1), rtol=1e-4, atol=1e-4)


def test_ranks_keep_and_find_the_same(network: Network, tmp_path: Path) -> None:
    expected = network.predict_topk(TEST.x, 5)
    save_model(tmp_path / "m", SavedModel(network.config, FEATURES, LABELS, network.state()), optimizer=False)

    def predict(comm: Communicator) -> Any:
        own, info = trained(comm)
        loaded = dslide.open_model(tmp_path / "m", comm=comm).network
        return own.predict_topk(TEST.x, 5), loaded.predict_topk(TEST.x, 5), info.neighbours

    for own, loaded, mixed in run_ranks(3, predict):
        assert mixed
        np.testing.assert_array_equal(loaded[0], expected[0])
        np.testing.assert_allclose(loaded[1], expected[1], rtol=1e-4, atol=1e-4)
        assert np.mean(own[0][:, 0] == expected[0][:, 0]) > 0.98  # sums in another order


def test_saved_neighbours_predict_the_same(network: Network, tmp_path: Path) -> None:
    save_model(tmp_path / "m", SavedModel(network.config, FEATURES, LABELS, network.state()), optimizer=False)
    opened = dslide.open_model(tmp_path / "m").network
    assert opened.neighbours is not None
    for one, other in zip(opened.predict_topk(TEST.x, 5), network.predict_topk(TEST.x, 5), strict=True):
        np.testing.assert_array_equal(one, other)


def test_shards_all_have_them(network: Network) -> None:
    whole = prior_arrays(network.state())
    halves = [(Shard(rank, 2), regrouped([(Shard(), whole)], Shard(rank, 2))) for rank in (0, 1)]
    back = regrouped(halves, Shard())
    for name in TYPES:
        np.testing.assert_array_equal(back[PREFIX + NEIGHBOUR + name], whole[PREFIX + NEIGHBOUR + name])


def test_training_that_goes_on_removes_them(network: Network) -> None:
    trainer = Trainer(Config(**OPTIONS), FEATURES, LABELS)
    trainer.network.load_state(network.state())
    assert trainer.network.neighbours is not None
    trainer.train_batch(*TRAIN.batch(np.arange(8)), total_steps=0)
    assert trainer.network.neighbours is None
    assert len(trainer.network.state()[PREFIX + NEIGHBOUR + "vector"]) == 0


def test_of_many_rows_a_random_choice_is_kept(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MOST_ROWS", 500)
    kept = Neighbours.of_rows(network, TRAIN.x, TRAIN.y)
    assert len(kept.arrays["begin"]) == 501
    assert kept.arrays["cell"][-1] == 500
    counts = np.bincount(kept.arrays["label"], minlength=LABELS)
    assert np.count_nonzero(counts) > LABELS // 2  # of all rows, not of the first


@pytest.mark.parametrize("name", [*TYPES])
def test_damaged_and_missing_arrays_are_refused(network: Network, name: str) -> None:
    arrays, key = dict(prior_arrays(network.state())), PREFIX + NEIGHBOUR + name
    short = arrays | {key: arrays[key][:-1]}
    with pytest.raises(ModelError):
        LabelPrior.of_state(short, FEATURES, LABELS, network.config)
    del arrays[key]
    with pytest.raises(ModelError, match=f"neighbour_{name}"):
        LabelPrior.of_state(arrays, FEATURES, LABELS, network.config)


@pytest.mark.parametrize(("name", "value"), [("label", LABELS), ("cell", 1), ("power", -1), ("power", np.nan)])
def test_values_out_of_range_are_refused(network: Network, name: str, value: float) -> None:
    state = network.state()
    state[PREFIX + NEIGHBOUR + name] = np.full_like(state[PREFIX + NEIGHBOUR + name], value)
    other = Network(network.config, FEATURES, LABELS)
    with pytest.raises(ModelError, match="neighbours"):
        other.load_state(state)
