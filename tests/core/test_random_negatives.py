"""Neurons chosen each with its own probability, against what probability says and against Python sets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide import _core


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def chosen(probability, certain=(), seed=0, correct=True, stripe=(0, 1, 1), neurons=None):
    """The active set of one row that wants `certain`, as {neuron: log-weight}."""
    probability = np.asarray(probability, np.float32)
    offsets, ids = np.array([0, len(certain)]), np.array(certain, np.int32)
    active = _core.ActiveSet.sampled(
        False, len(probability), offsets, ids, None, None, 1, seed, correct, neurons, stripe, probability
    )
    assert active.ids.tolist() == sorted(set(active.ids.tolist()))
    return dict(zip(active.ids.tolist(), active.log_weight.tolist(), strict=True))


def test_each_neuron_is_chosen_as_often_as_its_probability_says():
    """Over 4,000 seeds, every count is within 5 standard deviations; neighbours are independent."""
    probability = np.random.default_rng(0).uniform(size=300) ** 3
    probability[:3] = 0, 1, 1e-6
    runs = np.zeros((4000, 300))
    for seed in range(len(runs)):
        runs[seed, list(chosen(probability, seed=seed * 2**32 + seed))] = 1
    deviation = np.sqrt(probability * (1 - probability) * len(runs))
    assert (np.abs(runs.sum(0) - probability * len(runs)) <= 5 * deviation + 1e-9 + (probability < 1e-5)).all()
    middle = runs[:, (probability > 0.1) & (probability < 0.9)]
    correlation = np.corrcoef(middle.T) - np.eye(middle.shape[1])
    assert np.abs(correlation).max() < 6 / math.sqrt(len(runs))


@settings(max_examples=80, deadline=None)
@given(
    neurons=st.sampled_from([1, 2, 17, 255, 256, 257, 1500]),
    shares=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**64 - 1),
    correct=st.booleans(),
)
def test_certain_neurons_weigh_one_and_others_the_inverse_of_their_probability(neurons, shares, threads, seed, correct):
    """On any number of ranks and threads: the sets of all ranks make up that of one."""
    rng = np.random.default_rng(neurons)
    probability = rng.uniform(0.01, 1, neurons).astype(np.float32)
    certain = np.unique(rng.integers(0, neurons, 5)).tolist()
    _core.set_threads(threads)
    whole = chosen(probability, certain, seed, correct)
    assert set(certain) <= set(whole)
    for neuron, log_weight in whole.items():
        expected = 0.0 if neuron in certain or not correct else -math.log(probability[neuron])
        assert log_weight == pytest.approx(expected, rel=1e-5, abs=1e-7)
    _core.set_threads(1)
    together = {}
    owner = np.repeat(np.arange(len(shares)), shares)[np.arange(neurons) % sum(shares)]
    for rank, share in enumerate(shares):
        numbers = np.flatnonzero(owner == rank)
        if not len(numbers):
            continue
        own = np.searchsorted(numbers, [i for i in certain if owner[i] == rank]).tolist()
        stripe = sum(shares[:rank]), sum(shares), share
        part = chosen(probability[numbers], own, seed, correct, stripe, neurons)
        together |= {int(numbers[local]): log_weight for local, log_weight in part.items()}
    assert together == whole


def test_weighted_sums_estimate_sums_over_all_neurons():
    """The mean of many estimates of sum(exp(z)) is within 4 standard errors of the truth, and these are smaller where
    probabilities follow the terms than where they are all alike."""
    z = 2 * np.random.default_rng(5).standard_normal(300)
    truth, errors = np.exp(z).sum(), []
    for probability in (np.full(300, 0.1), np.minimum(1, 0.05 + 15 * np.exp(z) / truth)):
        estimates = []
        for seed in range(2000):
            ids, log_weights = zip(*chosen(probability, [3], seed).items(), strict=True)
            estimates.append(np.exp(z[list(ids)] + log_weights).sum())
        errors.append(np.std(estimates))
        assert abs(np.mean(estimates) - truth) < 4 * errors[-1] / math.sqrt(len(estimates))
    assert errors[1] < errors[0] / 2


def test_bad_probabilities_are_refused():
    nothing = np.zeros(2, np.int64), np.zeros(0, np.int32), None, None, 1, 0, True, None, (0, 1, 1)
    with pytest.raises(ValueError, match="one probability for each neuron"):
        _core.ActiveSet.sampled(False, 3, *nothing, np.ones(2, np.float32))
    with pytest.raises(ValueError, match="active sets that rows share"):
        _core.ActiveSet.sampled(True, 3, *nothing, np.ones(3, np.float32))
