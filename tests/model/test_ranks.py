"""A network split over ranks is the same network: losses, weights, active sets and predictions are those of one rank,
to rounding. Ranks are threads here; test_distributed.py has real processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.inprocess import run_ranks
from support.plain import PLAIN
from support.recording import Recording

from dslide import Config, Network, SparseRows
from dslide.comm.votes import Vote
from dslide.errors import ConfigError
from dslide.model.micro_batches import micro_batches
from dslide.model.prediction import last_hidden
from dslide.model.sharding import Shard, neuron_axis
from dslide.util.csr import Csr

FEATURES, LABELS, ROWS, STEPS = 61, 83, 270, 4
# Adam divides by the size of gradients: without the larger epsilon, rounding in tiny ones would become whole steps.
BASE = PLAIN | {
    "hidden": (22,), "output": "full", "wire": "float32", "learning_rate": 0.02, "epsilon": 1e-5, "seed": 5,
}  # fmt: skip


def batch(step: int, loss: str = "softmax") -> tuple[Csr, Csr]:
    rng = np.random.default_rng(100 + step)

    def lists(columns: int, least: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = rng.random((ROWS, columns)) < 4 / columns
        chosen[np.arange(ROWS), rng.integers(0, columns, ROWS)] |= least > 0
        rows, ids = np.nonzero(chosen)
        return np.searchsorted(rows, np.arange(ROWS + 1)).astype(np.int64), ids.astype(np.int32)

    offsets, ids = lists(FEATURES, 0)
    x = Csr(offsets, ids, rng.standard_normal(len(ids)).astype(np.float32))
    offsets, ids = lists(LABELS, 1)
    counts = np.repeat(np.diff(offsets), np.diff(offsets))
    targets = (1 / counts if loss == "softmax" else np.ones(len(ids))).astype(np.float32)
    return x, Csr(offsets, ids, targets)


def whole_state(
    parts: list[dict[str, np.ndarray]], config: Config, unequal: tuple[int, ...] = ()
) -> dict[str, np.ndarray]:
    """The arrays of all ranks put together, padding left out."""
    shares = config.hidden_share or (1.0,) * len(config.hidden)
    sparse = [True, *(share < 1 for share in shares)]
    sizes = [FEATURES, *config.hidden, LABELS]
    whole = {}
    for name, first in parts[0].items():
        if name.startswith(("cells.", "index.", "recent.")):  # the same on all ranks
            for part in parts[1:]:
                assert_array_equal(part[name], first)
            whole[name] = first
            continue
        of_labels = name in ("calibration", "inclusion")
        layer, array = (len(sizes) - 2, name) if of_labels else (int(name[5]), name.split(".")[1])
        axis = {"codes": 1, "moved": 0, "calibration": 0, "inclusion": 0}.get(array, neuron_axis(array, sparse[layer]))
        width = sizes[layer + 1] if sparse[layer] else sizes[layer]
        if axis is None:
            for part in parts[1:]:
                assert_array_equal(part[name], first)
            whole[name] = first
            continue
        shape = list(first.shape)
        shape[axis] = sizes[layer + 1]
        whole[name] = np.zeros(shape, first.dtype)
        for rank, part in enumerate(parts):
            shard = Shard(rank, len(parts), unequal)
            own = shard.count(sizes[layer + 1])
            place = [slice(None)] * first.ndim
            place[axis] = shard.numbers(own)
            whole[name][tuple(place)] = part[name][:own] if axis == 0 else part[name][:, :own]
        if array.startswith("weights") and first.ndim == 2 and axis == 0:
            whole[name] = whole[name][:, :width]
    return whole


Trained = tuple[list[list[float]], dict[str, np.ndarray], list[set[int]]]


def train(config: Config, size: int, shares: tuple[int, ...] = ()) -> Trained:
    """Losses of the steps by rank, the state after them, and each step's active output neurons."""

    def work(comm):
        comm.shares = shares
        network = Recording(config, FEATURES, LABELS, comm=comm)
        chosen = []
        network.set_output_bias(np.linspace(0.01, 0.3, LABELS))
        network.set_negatives(np.linspace(0.01, 0.3, LABELS))
        losses = []
        for step in range(STEPS):
            if step == 2:
                network.rebuild_tables()
            losses.append(network.train_step(*batch(step, config.loss), step, 0.02).loss)
            chosen.append({int(i) for i in network.shard.to_global(network.active[-1].ids)})
        return losses, {name: array.copy() for name, array in network.state().items()}, chosen

    results = run_ranks(size, work)
    union = [set().union(*(chosen[step] for _, _, chosen in results)) for step in range(STEPS)]
    return [losses for losses, _, _ in results], whole_state([state for _, state, _ in results], config, shares), union


@cache
def train_once(config: Config) -> Trained:
    """On one rank, for all numbers of ranks that are compared with it."""
    return train(config, 1)


def assert_same_training(
    config: Config, size: int, train_one: Callable[[Config], Trained] = train_once, shares: tuple[int, ...] = ()
) -> None:
    one_losses, one, one_active = train_one(config)
    losses, many, active = train(config, size, shares)
    assert active == one_active
    for own in losses:
        assert own == losses[0]  # every rank knows the same loss
        assert_allclose(own, one_losses[0], rtol=1e-5)
    assert one.keys() == many.keys()
    for name, expected in one.items():
        error = np.abs(many[name].astype(np.float64) - expected)
        assert error.max() <= 1e-5 * max(1.0, np.abs(expected).max()), f"{name}: {error.max()}"


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize(("loss", "optimizer"), list(product(["softmax", "sigmoid"], ["adam", "sgd", "adagrad"])))
def test_full_training_is_that_of_one_rank(size, loss, optimizer):
    """22 hidden units and 83 labels are divisible by few of the sizes."""
    assert_same_training(Config(**BASE | {"loss": loss, "optimizer": optimizer}), size)


@pytest.mark.parametrize("size", [2, 3, 7, (2, 1), (3, 5, 1)])
@pytest.mark.parametrize(
    "options",
    [
        {"hidden": (22, 19, 9)},
        {"hidden": (22, 19), "activation": "linear", "loss": "sigmoid"},
        {"hidden": (24, 20), "dropout_input": 0.2, "dropout_hidden": 0.4},
        {"micro_batches": 5},
        {"micro_batches": 1},
        {"hidden": (40,), "hidden_share": (0.5,), "bucket_size": 0},
        {"hidden": (40, 18), "hidden_share": (0.5, 1.0), "bucket_size": 0, "dropout_hidden": 0.3},
        {"hidden": (40, 18), "hidden_share": (1.0, 0.6), "active_sets": "row", "bucket_size": 0},
        {"output": "random", "random_negatives": 12},
        {"output": "random", "random_negatives": 12, "negative_sampling": "uniform"},
        {"output": "random", "random_negatives": 12, "active_sets": "row"},
        {"output": "lsh", "hash_hits": 3, "random_negatives": 10, "bucket_size": 0},
        {
            "output": "lsh",
            "hash_hits": 3,
            "random_negatives": 10,
            "bucket_size": 0,
            "micro_batches": 3,
            "loss": "sigmoid",
        },
        {"output": "lsh", "hash_hits": 6, "random_negatives": 8, "bucket_size": 0, "active_sets": "row"},
        {"output": "lsh", "hash_hits": 4, "random_negatives": 8, "bucket_size": 0, "probe": "threshold"},
        {"output": "cells", "hash_hits": 3, "random_negatives": 10},
        {"output": "cells", "hash_hits": 3, "random_negatives": 10, "micro_batches": 3, "loss": "sigmoid"},
        {"output": "lsh", "hash_hits": 10_000, "random_negatives": 8, "bucket_size": 0, "probe": "vanilla"},
        {
            "output": "lsh",
            "hash_hits": 3,
            "random_negatives": 4,
            "bucket_size": 0,
            "family": "dwta",
            "correction": False,
        },
    ],
)
def test_other_networks_are_those_of_one_rank(size, options):
    """A tuple has the shares of ranks that are not equal."""
    shares = size if isinstance(size, tuple) else ()
    assert_same_training(Config(**BASE | options), len(shares) or size, shares=shares)


def test_logits_too_large_to_keep_take_the_other_path(monkeypatch):
    monkeypatch.setattr("dslide.model.output_losses.KEPT_BYTES", 1000)
    for loss in ("softmax", "sigmoid"):
        assert_same_training(Config(**BASE | {"loss": loss}), 3, lambda config: train(config, 1))


@pytest.mark.parametrize(("wire", "bound"), [("bf16", 0.02), ("int8", 0.06)])
def test_rounded_wire_formats_stay_close(wire, bound):
    """The loss over a few steps differs by the rounding of activations and gradients, and by no more. Every rank
    computes with the same rounded numbers: their losses are equal."""
    exact, _, _ = train(Config(**BASE), 3)
    rounded, _, _ = train(Config(**BASE | {"wire": wire}), 3)
    assert rounded[0] == rounded[1] == rounded[2]
    assert rounded[0] != exact[0]
    assert_allclose(rounded[0], exact[0], rtol=bound)


@pytest.mark.parametrize("option", ["weights", "moments"])
def test_networks_stored_as_bf16_stay_close_on_several_ranks(option):
    """Ranks round the numbers they own at random: they agree with one rank in the loss to what bf16 does to it."""
    config = Config(**BASE | {option: "bf16"})
    one, many = train(config, 1)[0], train(config, 3)[0]
    assert many[0] == many[1] == many[2]
    assert_allclose(many[0], one[0], rtol=0.01)


@pytest.mark.parametrize("weights", ["float32", "bf16"])
@pytest.mark.parametrize("options", [{"output": "cells"}, {"output": "lsh"}, {"hidden_share": (0.5,)}])
@pytest.mark.parametrize("shares", [(1, 1), (1, 1, 1), (2, 1, 4), (1, 1, 1, 1, 1)])
def test_predictions_are_those_of_one_rank(shares, options, weights):
    x, _ = batch(0)
    rows = SparseRows(x.indptr, x.indices, x.values, FEATURES)
    some = np.array([80, 3, 3, 11], np.int32)
    gone = np.random.default_rng(3).random((ROWS, LABELS)) < np.linspace(0, 1, ROWS)[:, None]  # none to all of a row
    exclude = SparseRows.from_scipy(gone)

    def work(comm):
        comm.shares = shares if comm.size > 1 else ()
        config = Config(**BASE | options | {"bucket_size": 0, "weights": weights})
        network = Network(config, FEATURES, LABELS, comm=comm)
        if network.recent is not None:
            network.recent.add(last_hidden(network, rows).values)
        found = [network.predict_topk(rows, k) for k in (1, 6, 90)]
        found += [network.predict_topk(rows, k, exclude) for k in (1, 6, 90)]
        found += [network.predict_topk_approximate(rows, 4, left_out) for left_out in (None, exclude)]
        return found, network.scores(rows, some)

    (one, one_scores), *_ = run_ranks(1, work)
    for found, scores in run_ranks(len(shares), work):
        for (ids, values), (expected_ids, expected) in zip(found, one, strict=True):
            assert_array_equal(ids, expected_ids)
            assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
        assert_allclose(scores, one_scores, rtol=1e-5, atol=1e-6)


def test_more_ranks_than_neurons_are_refused():
    with pytest.raises(ConfigError, match="22 neurons of a hidden layer can't be split over 23 ranks"):
        run_ranks(23, lambda comm: Network(Config(**BASE), FEATURES, 99, comm=comm))


@pytest.mark.parametrize(("shares", "neurons", "ranks"), [((3, 1), 3, 2), ((1, 1, 20), 2, 3), ((), 2, 3)])
def test_shares_that_leave_a_rank_without_neurons_are_refused(shares, neurons, ranks):
    def work(comm):
        comm.shares = shares
        return Network(Config(**BASE | {"hidden": (neurons,)}), FEATURES, 99, comm=comm)

    with pytest.raises(ConfigError, match=rf"{neurons} neurons of a hidden layer can't be split over {ranks} ranks"):
        run_ranks(ranks, work)


@pytest.mark.parametrize("shares", [(1, 1), (4, 4, 4), (2, 1), (1, 3, 2), (64, 1), (6, 4)])
def test_every_neuron_has_one_owner(shares):
    """By the rule: of as many neurons as all shares together, the first ones are the first rank's, and so on."""
    size, alike = len(shares), len(set(shares)) == 1
    least = [1] * size if alike else [share // np.gcd.reduce(shares) for share in shares]
    owner = np.repeat(np.arange(size), least)[np.arange(200) % sum(least)]
    for rank in range(size):
        shard, own = Shard(rank, size, shares), np.flatnonzero(owner == rank)
        assert_array_equal(shard.part(np.arange(200)), own)
        assert_array_equal(shard.numbers(shard.count(200)), own)
        assert_array_equal(shard.owns(np.arange(200)), owner == rank)
        assert_array_equal(shard.to_local(own), np.arange(len(own)))
        assert_array_equal(shard.to_global(np.arange(-1, len(own))), [-1, *own])
        assert [shard.count(n) for n in range(201)] == [int((own < n).sum()) for n in range(201)]


def test_all_ranks_have_the_votes_of_all():
    def work(comm):
        network = Network(Config(**BASE), FEATURES, LABELS, comm=comm)
        votes = [Vote(2), Vote(3 if comm.rank == 2 else 2), Vote(1 << comm.rank)]
        steps = [network.train_step(*batch(s), s, 0.01, vote=votes[s]) for s in range(3)]
        return [(step.votes.any, step.votes.all) for step in steps]

    assert run_ranks(3, work) == [[(2, 2), (3, 2), (7, 0)]] * 3


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 300, 1024])
@pytest.mark.parametrize("asked", [1, 2, 3, 40])
def test_a_batch_is_cut_at_multiples_of_128_into_parts_of_some_rows(rows, asked):
    parts = micro_batches(rows, asked)
    assert [row for begin, end in parts for row in range(begin, end)] == list(range(rows))
    assert all(begin % 128 == 0 and begin < end for begin, end in parts)
    assert len(parts) <= asked
    network = Network(Config(**BASE | {"micro_batches": asked}), FEATURES, LABELS)
    assert network.step.parts(rows) == [(0, rows)]  # one rank has nothing to overlap
