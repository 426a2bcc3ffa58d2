"""Random negatives by frequency: their probabilities, and that networks use and keep them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide.config import Config
from dslide.errors import ConfigError
from dslide.model.negatives import inclusion_probabilities
from dslide.model.network import Network


@settings(max_examples=200, deadline=None)
@given(
    frequencies=st.lists(st.floats(0, 1), max_size=40),
    more=st.integers(0, 5),
    negatives=st.integers(0, 60),
)
def test_as_many_negatives_are_expected_as_asked_for(frequencies, more, negatives):
    labels = max(1, len(frequencies) + more)
    p = inclusion_probabilities(np.array(frequencies), labels, negatives)
    assert p.shape == (labels,)
    assert p.dtype == np.float32
    assert ((p >= 0) & (p <= 1)).all()
    assert p.sum() == pytest.approx(min(negatives, labels), rel=1e-4)
    assert (p >= 0.499 * min(1, negatives / labels)).all()  # at least half of what uniform sampling would give
    known = np.zeros(labels)
    known[: len(frequencies)] = frequencies
    assert (np.diff(p[np.argsort(known, kind="stable")]) >= -1e-6).all()  # the more frequent, the more likely


def test_frequent_labels_are_sampled_in_proportion():
    p = inclusion_probabilities(np.array([0.9, 0.03, 0.01]), 1000, 10)
    np.testing.assert_allclose(p[3:], p[-1])
    assert p[0] == 1
    assert (p[1] - p[-1]) / (p[2] - p[-1]) == pytest.approx(3, rel=0.01)


def test_without_frequencies_all_labels_are_alike():
    np.testing.assert_allclose(inclusion_probabilities(None, 50, 10), 0.2, rtol=1e-6)
    np.testing.assert_allclose(inclusion_probabilities(np.zeros(3), 50, 10), 0.2, rtol=1e-6)


def network(**options):
    return Network(Config(hidden=(8,), output="random", random_negatives=10, prior_labels=0, **options), 20, 60)


def test_a_network_has_more_of_frequent_labels():
    made = network()
    made.set_negatives(np.arange(60.0))
    assert made.inclusion is not None
    assert made.inclusion.sum() == pytest.approx(10, rel=1e-5)
    assert made.inclusion[59] > 2 * made.inclusion[0]
    other = network()
    other.load_state(made.state())
    np.testing.assert_array_equal(other.inclusion, made.inclusion)


def test_uniform_sampling_is_an_option():
    made = network(negative_sampling="uniform")
    made.set_negatives(np.arange(60.0))
    assert made.inclusion is None


def test_sets_for_each_row_are_sampled_uniformly():
    assert network(active_sets="row").config.negative_sampling == "uniform"
    with pytest.raises(ConfigError, match="negative_sampling = frequency is for active_sets = shared"):
        network(active_sets="row", negative_sampling="frequency")
