"""A network that grows: what it has learned stays, and the label prior is that of all rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support.inprocess import run_ranks
from support.plain import PLAIN

from dslide import Config, Network, SparseRows
from dslide.comm import Communicator, solo
from dslide.data import Dataset
from dslide.model.defaults import resolve
from dslide.model.growth import with_counts
from dslide.model.label_prior import LabelPrior
from dslide.model.sharding import WHOLE, Shard

PRIOR = PLAIN | {"prior_labels": 1000, "prior_learning_rate": 1.0, "hidden": (8,), "output": "full"}


def rows(count: int, features: int, labels: int, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = (rng.random((count, features)) < 0.3) * rng.random((count, features))
    y = rng.random((count, labels)) < 2 / labels
    return Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y.astype(np.float32)))


def counted(data: Dataset, features: int, labels: int, config: Config, shard: Shard = WHOLE) -> LabelPrior:
    return LabelPrior.count(data.x, data.y, features, labels, config, shard, False)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(0, 30), st.integers(1, 9), st.integers(2, 12), st.sampled_from([0.0, 0.5, 1.0]))
def test_rows_counted_later_make_the_label_prior_that_all_rows_together_make(
    first: int, more: int, features: int, labels: int, power: float
) -> None:
    config = resolve(Config(**PRIOR | {"prior_power": power}), labels)
    data = rows(first + more, features, labels)
    begin, end = data.take(np.arange(first)), data.take(np.arange(first, first + more))
    found = with_counts(counted(begin, features, labels, config), end.x, end.y, labels, len(data), config, solo())
    wanted = counted(data, features, labels, config)
    for name in ("begin", "neuron", "rows"):
        assert_array_equal(found.arrays[name], wanted.arrays[name])
    for name in ("weight", "share"):
        assert_allclose(found.arrays[name], wanted.arrays[name], rtol=1e-4, atol=1e-6)


def test_ranks_count_as_one_rank_does_and_keep_the_same_links() -> None:
    features, labels, config = 12, 40, resolve(Config(**PRIOR | {"prior_labels": 5}), 40)
    data = rows(300, features, labels)
    begin, end = data.take(np.arange(200)), data.take(np.arange(200, 300))

    def work(comm: Communicator) -> dict[tuple[int, int], float]:
        shard = Shard(comm.rank, comm.size)
        prior = counted(begin, features, labels, config, shard)
        arrays = with_counts(prior, end.x, end.y, labels, len(data), config, comm).arrays
        feature = np.repeat(np.arange(features), np.diff(arrays["begin"]))
        label = arrays["neuron"] * shard.size + shard.rank
        return dict(zip(zip(feature.tolist(), label.tolist(), strict=True), arrays["weight"].tolist(), strict=True))

    one, three = work(solo()), {}
    for part in run_ranks(3, work):
        three |= part
    assert one.keys() == three.keys()
    assert len(one) == 5 * features
    assert_allclose([three[link] for link in one], list(one.values()), rtol=1e-6)


@pytest.mark.parametrize("output", ["full", "lsh"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_larger_network_scores_old_labels_as_before_and_trains_on(ranks: int, output: str) -> None:
    config = resolve(Config(**PRIOR | {"output": output, "learning_rate": 0.02}), 30)
    before, after = rows(60, 20, 30), rows(80, 25, 44, seed=1)

    def work(comm: Communicator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        old = Network(config, 20, 30, comm=comm)
        old.set_output_bias(before.label_frequencies())
        old.set_label_prior(before.x, before.y, same=False)
        for step in range(3):
            old.train_step(before.x, old.loss.targets(before.y), step, 0.02)
        new = Network(config, 25, 44, comm=comm)
        new.load_smaller(old.state(), 20, 30)
        labels = np.arange(30, dtype=np.int32)
        was, now = old.scores(before.x, labels), new.scores(before.x, labels)
        new.set_new_bias(after.label_frequencies(), 30)
        new.add_counts(after.x, after.y, after.label_frequencies(), 140)
        for step in range(3, 6):
            new.train_step(after.x, new.loss.targets(after.y), step, 0.02)
        return was, now, new.scores(after.x, np.arange(44, dtype=np.int32))

    found = run_ranks(ranks, work)
    for was, now, _ in found:
        assert_array_equal(was, now)
    if output == "full":  # else ranks draw other negatives
        assert_allclose(found[0][2], run_ranks(1, work)[0][2], rtol=1e-3, atol=1e-3)


def test_moments_of_old_neurons_are_kept_and_those_of_new_ones_are_empty() -> None:
    config = resolve(Config(**PRIOR | {"optimizer": "adam"}), 10)
    data = rows(50, 12, 10)
    old, new = Network(config, 12, 10), Network(config, 15, 13)
    for step in range(2):  # in the first one the output weights are 0, and hidden neurons get no gradient
        old.train_step(data.x, old.loss.targets(data.y), step, 0.01)
    new.load_smaller(old.state(), 12, 10)
    for layer, kept in ((0, 12), (1, 10)):
        for name in ("weights_moment1", "weights_moment2", "weights_clock"):
            array, was = new.layers[layer].arrays[name], old.layers[layer].arrays[name]
            assert was.any()
            assert_array_equal(array[:kept], was)
            assert not array[kept:].any()


def test_a_larger_network_has_cells_to_look_up_in_from_its_first_step() -> None:
    config = resolve(Config(**PLAIN | {"hidden": (8,), "output": "cells", "hash_hits": 4, "rebuild_every": 5}), 300)
    data = rows(120, 12, 300)
    old, new = Network(config, 12, 300), Network(config, 15, 330)
    for step in range(6):
        old.train_step(data.x, old.loss.targets(data.y), step, 0.01)
        if step == 4:
            old.rebuild_tables()
    assert old.cells is not None
    assert new.cells is not None
    assert old.cells.built
    assert not new.cells.built
    new.load_smaller(old.state(), 12, 300)
    assert new.cells.built
    new.train_step(data.x, new.loss.targets(data.y.with_columns(330)), 0, 0.01)
