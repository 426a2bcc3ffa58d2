"""Regressions of items in a training on interactions: when they are mixed in, on several ranks, saved, and planned."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference.regressions as slow
import scipy.sparse as sp
from support.inprocess import run_ranks
from support.plain import PLAIN

import dslide
from dslide import CalibrationInfo, Config, Network, Trainer
from dslide.checkpoint.saved_model import SavedModel, save_model
from dslide.comm import Communicator
from dslide.data import Dataset, SparseRows
from dslide.data.items import hold_out_items, item_features
from dslide.model.defaults import resolve
from dslide.planner.memory import plan
from dslide.training.calibration import calibrate
from dslide.training.item_regressions import COST, train_regressions

GROUPS, SIZE = 18, 5
ITEMS = GROUPS * SIZE
OPTIONS: dict[str, Any] = {
    **PLAIN, "hidden": (3,), "batch_size": 64, "threads": 1, "epochs": 1, "loss": "softmax", "wire": "float32",
    "prior_labels": 1, "prior_scale": 1.0, "prior_power": 0.5, "prior_boost": 1.0, "prior_learning_rate": 0.0,
    "prior_hits": 0, "linear_items": 20,
}  # fmt: skip


def made(users: int, seed: int, told: bool = True) -> Dataset:
    """Users with items of two groups, unless at random: more groups than three hidden units separate."""
    rng = np.random.default_rng(seed)
    items = rng.integers(0, ITEMS, (users, 8))
    if told:
        groups = np.argsort(rng.random((users, GROUPS)), axis=1)[:, :2].repeat(4, axis=1)
        items = groups * SIZE + rng.integers(0, SIZE, (users, 8))
    matrix = sp.csr_matrix((np.ones(items.size), (np.repeat(np.arange(users), 8), items.ravel())), (users, ITEMS))
    matrix.data[:] = 1
    y = SparseRows.from_scipy(matrix.astype(np.float32))
    return Dataset(item_features(y, y.column_counts()), y, source="made", users=np.arange(users, dtype=np.int32))


TRAIN, HELD_OUT = hold_out_items(made(2000, 0), 0.2, 0)
_, TEST = hold_out_items(made(300, 1), 1.0, 0)


def trained(comm: Communicator | None = None, data: Dataset = TRAIN, **changes: Any) -> tuple[Network, CalibrationInfo]:
    trainer = Trainer(Config(**OPTIONS | changes), ITEMS, ITEMS, comm=comm)
    trainer.fit(TRAIN)
    return trainer.network, calibrate(trainer.network, HELD_OUT, TRAIN.label_counts, (5,), data)


@pytest.fixture(scope="module")
def network() -> Network:
    return trained()[0]


def hits(network: Network) -> float:
    ids, _ = network.predict_topk(TEST.x, 5, TEST.seen)
    return float(np.mean([len(set(found) & set(TEST.y.part(row, row + 1).indices)) for row, found in enumerate(ids)]))


def test_regressions_that_know_more_than_the_network_are_mixed_in(network: Network) -> None:
    assert network.linear is not None
    without, info = trained(linear_items=0)
    assert info.linear_cost == 0
    assert without.linear is None
    assert hits(network) > hits(without) + 0.1


def test_regressions_that_know_nothing_are_not() -> None:
    network, info = trained(data=made(2000, 3, told=False))
    assert info.linear_cost == 0
    assert network.linear is None


def test_scores_are_those_of_the_slow_version(network: Network) -> None:
    users = TRAIN.y.to_scipy().toarray()
    weights = np.array([slow.regress(users, item, COST, OPTIONS["linear_items"]) for item in range(ITEMS)])
    every = np.broadcast_to(np.arange(ITEMS, dtype=np.int32), (len(HELD_OUT), ITEMS))
    found = train_regressions(network, TRAIN.y).scores(HELD_OUT.x, every)
    has = HELD_OUT.x.to_scipy().toarray() > 0
    lengths = np.sqrt((has / (1 + users.sum(axis=0))).sum(axis=1, keepdims=True))  # of rows before they are scaled
    np.testing.assert_allclose(found, has @ weights.T / lengths, rtol=1e-3, atol=1e-3)


def test_ranks_train_and_predict_alike(network: Network, tmp_path: Path) -> None:
    expected = network.predict_topk(TEST.x, 5, TEST.seen)
    save_model(tmp_path / "m", SavedModel(network.config, ITEMS, ITEMS, network.state()), optimizer=False)

    def predict(comm: Communicator) -> Any:
        own, info = trained(comm)
        loaded = dslide.open_model(tmp_path / "m", comm=comm).network
        results = (each.predict_topk(TEST.x, 5, TEST.seen) for each in (own, loaded))
        return *results, info.linear_cost > 0

    for own, loaded, mixed in run_ranks(3, predict):
        assert mixed
        np.testing.assert_array_equal(loaded[0], expected[0])
        np.testing.assert_allclose(loaded[1], expected[1], rtol=1e-4, atol=1e-4)
        assert np.mean(own[0] == expected[0]) > 0.98  # sums in another order


def test_the_plan_has_room_for_their_weights() -> None:
    config = resolve(Config(validation=0.1), ITEMS, TRAIN)
    assert config.linear_items > 0
    planned = [
        plan(dataclasses.replace(config, linear_items=items), ITEMS, ITEMS, rows=len(TRAIN), labels_per_row=6.0)
        for items in (0, 20)
    ]
    without, with_them = (each.parts["linear classifiers"] for each in planned)
    assert without == 0
    arrays = train_regressions(trained()[0], TRAIN.y).arrays
    assert with_them >= sum(array.nbytes for array in arrays.values())
