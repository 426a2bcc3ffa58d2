"""Active sets against Python sets."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.network import slots_of

from dslide import _core


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def csr(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return offsets, np.array(list(itertools.chain.from_iterable(lists)), np.int32)


def sampled(per_row, neurons, labels, hits, negatives, seed=0, correct=True, **stripe):
    found = (None, None) if hits is None else csr(hits)
    return _core.ActiveSet.sampled(per_row, neurons, *csr(labels), *found, negatives, seed, correct, **stripe)


def row_sets(active) -> list[list[int]]:
    """The active neurons of each row, in the order of its slots."""
    rows, ids = slots_of(active)
    return [ids[rows == i].tolist() for i in range(active.rows)]


@st.composite
def batches(draw):
    """Neurons, labels and hash hits of rows (None: no hits), with repetitions and empty lists, and random negatives."""
    neurons = draw(st.sampled_from([1, 2, 3, 17, 64, 300]))
    rows = draw(st.integers(1, 9))
    lists = st.lists(st.lists(st.integers(0, neurons - 1), max_size=6), min_size=rows, max_size=rows)
    hits = draw(st.none() | lists)
    return neurons, draw(lists), hits, draw(st.sampled_from([0, 1, 5, 40, 1000]))


def test_everything():
    active = _core.ActiveSet.everything(5, 3)
    assert active.is_everything
    assert not active.is_per_row
    assert row_sets(active) == [[0, 1, 2, 3, 4]] * 3
    assert active.log_weight.tolist() == [0.0] * 5
    assert (active.slots, active.mean) == (15, 5.0)


@settings(max_examples=150, deadline=None)
@given(batch=batches(), per_row=st.booleans(), correct=st.booleans(), seed=st.integers(0, 2**64 - 1))
def test_sampled_sets_are_labels_hash_hits_and_random_negatives(batch, per_row, correct, seed):
    neurons, labels, hits, negatives = batch
    active = sampled(per_row, neurons, labels, hits, negatives, seed, correct)
    certain = [set(own) | set(found) for own, found in zip(labels, hits or [[]] * len(labels), strict=True)]
    if not per_row:
        certain = [set().union(*certain)] * len(labels)
    sets = row_sets(active)
    weights = active.log_weight
    for i, (sure, ids) in enumerate(zip(certain, sets, strict=True)):
        assert ids == sorted(set(ids))  # ascending, each once
        assert sure <= set(ids)
        free = set(ids) - sure
        assert len(free) <= negatives
        assert all(0 <= neuron < neurons for neuron in ids)
        logs = weights[active.row_begin[i] : active.row_begin[i + 1]] if per_row else weights
        chance = 1 - (1 - 1 / neurons) ** negatives  # to be drawn at least once
        expected = -math.log(chance) if correct and free else 0.0
        for neuron, log in zip(ids, logs, strict=True):
            assert log == pytest.approx(0.0 if neuron in sure else expected, rel=1e-6, abs=1e-7)
    if per_row:
        assert active.ids.tolist() == sorted(set().union(*map(set, sets)))
    assert active.slots == sum(map(len, sets))
    assert active.mean == pytest.approx(active.slots / len(labels))


@settings(max_examples=60, deadline=None)
@given(
    batch=batches(), per_row=st.booleans(), shares=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    seed=st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_stripes_of_a_set_make_up_the_whole(batch, per_row, shares, seed):
    """The sets of all ranks joined equal the set of one process, weights included."""
    neurons, labels, hits, negatives = batch
    whole = sampled(per_row, neurons, labels, hits, negatives, seed)
    together = [{} for _ in labels]
    owner = np.repeat(np.arange(len(shares)), shares)[np.arange(neurons) % sum(shares)]
    for rank, share in enumerate(shares):
        numbers = np.flatnonzero(owner == rank).tolist()
        if not numbers:
            continue
        own = [[[numbers.index(i) for i in row if i in numbers] for row in lists] for lists in (labels, hits or [])]
        stripe = {"layer_neurons": neurons, "stripe": (sum(shares[:rank]), sum(shares), share)}
        part = sampled(per_row, len(numbers), own[0], own[1] or None, negatives, seed, **stripe)
        for row, ids, weights in zip(together, row_sets(part), row_weights(part), strict=True):
            row.update(zip([numbers[i] for i in ids], weights, strict=True))
    expected = [
        dict(zip(ids, weights, strict=True)) for ids, weights in zip(row_sets(whole), row_weights(whole), strict=True)
    ]
    assert together == expected


def row_weights(active):
    if not active.is_per_row:
        return [active.log_weight.tolist()] * active.rows
    return [active.log_weight[active.row_begin[i] : active.row_begin[i + 1]].tolist() for i in range(active.rows)]


@settings(max_examples=40, deadline=None)
@given(batch=batches(), per_row=st.booleans(), seed=st.integers(0, 2**64 - 1))
def test_sets_follow_from_the_seed_and_not_from_threads(batch, per_row, seed):
    seen = []
    for threads in (1, 2, 3):
        _core.set_threads(threads)
        active = sampled(per_row, *batch, seed)
        seen.append((row_sets(active), active.log_weight.tolist()))
    assert seen[0] == seen[1] == seen[2]


def test_negatives_differ_between_seeds_and_rows():
    nothing = [[], []]
    first, second = (sampled(True, 10_000, nothing, None, 50, seed) for seed in (1, 2))
    assert row_sets(first) != row_sets(second)
    assert row_sets(first)[0] != row_sets(first)[1]


def test_negatives_are_uniform():
    """Each of 50 neurons is drawn equally often: chi-squared with 49 degrees of freedom, bound at 1 in 10^6."""
    counts = np.zeros(50)
    for seed in range(4000):
        counts[sampled(False, 50, [[]], None, 1, seed).ids] += 1
    assert counts.sum() == 4000
    assert ((counts - 80) ** 2 / 80).sum() < 115


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize(("negatives", "runs"), [(20, 4000), (200, 1500), (1000, 500)])
def test_weighted_sums_estimate_sums_over_all_neurons(per_row, negatives, runs):
    """The mean of many estimates of sum(exp(z)) is within 4 standard errors of the truth (chance of failing by luck
    1 in 16,000, and the seeds are fixed). With all weights 1 it is far off."""
    neurons = 300
    z = np.random.default_rng(5).standard_normal(neurons)
    truth = np.exp(z).sum()
    labels, hits = [[3, 250], [7]], [[11, 12, 3], []]
    corrected, plain = [], []
    for seed in range(runs):
        for results, correct in ((corrected, True), (plain, False)):
            active = sampled(per_row, neurons, labels, hits, negatives, seed, correct)
            ids = slots_of(active)[1] if per_row else active.ids
            first = slice(0, active.row_begin[1] if per_row else None)  # the estimate of row 0
            results.append(np.exp(z[ids] + active.log_weight)[first].sum())
    error = np.std(corrected) / math.sqrt(runs)
    assert abs(np.mean(corrected) - truth) < 4 * error
    assert error < truth / 50  # the bound above means something
    if negatives < 1000:
        assert np.mean(plain) < 0.6 * truth


@pytest.mark.parametrize("per_row", [False, True])
def test_without_correction_all_weights_are_one(per_row):
    active = sampled(per_row, 100, [[1], [2]], [[5], [6]], 30, 0, correct=False)
    assert not active.log_weight.any()


@pytest.mark.parametrize("per_row", [False, True])
def test_all_neurons_drawn_have_weight_one(per_row):
    active = sampled(per_row, 20, [[1], []], None, 2000)
    assert row_sets(active) == [list(range(20))] * 2
    assert np.abs(active.log_weight).max() < 1e-6


@pytest.mark.parametrize(
    ("neurons", "offsets", "ids", "what"),
    [
        (0, [0, 0], [], "number of neurons"),
        (5, [0], [], "needs rows"),
        (5, [0, 1], [5], "out of range"),
        (5, [0, 1], [-1], "out of range"),
        (5, [0, 2, 1], [0], "offsets"),
        (5, [0, 1], [0, 1], "span"),
    ],
)
def test_bad_lists_are_refused(neurons, offsets, ids, what):
    with pytest.raises(ValueError, match=what):
        _core.ActiveSet.sampled(
            False, neurons, np.array(offsets, np.int64), np.array(ids, np.int32), None, None, 0, 0, True
        )
