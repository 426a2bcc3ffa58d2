"""The label prior, counted and added to logits, against the slow version in reference/label_prior.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from reference.label_prior import SlowLabelPrior, lengths_of
from support.layer_cases import make_active, make_targets, sparse_input

from dslide import _core
from dslide.config import Config
from dslide.data import SparseRows
from dslide.model.label_prior import LabelPrior, regrouped, row_lengths
from dslide.model.sharding import WHOLE, Shard


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def count(
    x: SparseRows, y: SparseRows, most: int, same: bool = False, shard: Shard = WHOLE, scale: float = 1.0,
    power: float = 1.0,
) -> LabelPrior:  # fmt: skip
    config = Config(prior_labels=most, prior_scale=scale, prior_power=power)
    return LabelPrior.count(x, y, x.columns, y.columns, config, shard, same)


def rows_of(matrix: Any) -> SparseRows:
    return SparseRows.from_scipy(np.asarray(matrix, np.float32))


@st.composite
def data(draw: Any) -> tuple[SparseRows, SparseRows]:
    """Rows of few different values, so that there are ties; without features, without labels, columns never seen."""
    rows, features, labels = draw(st.integers(0, 9)), draw(st.integers(1, 7)), draw(st.integers(1, 7))
    values = arrays(np.float32, (rows, features), elements=st.sampled_from([0, 0, 0, 1, 1, 2, -1]))
    return rows_of(draw(values)), rows_of(draw(arrays(np.bool_, (rows, labels))))


@settings(deadline=None)
@given(data(), st.integers(1, 8), st.booleans(), st.integers(1, 3), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_counts_equal_those_of_the_reference(some, most, same, threads, power):
    x, y = some
    _core.set_threads(threads)
    prior, slow = count(x, y, most, same, power=power), SlowLabelPrior.count(x, y, most, same, power)
    fast = SlowLabelPrior.of_arrays(prior.begin, prior.neuron, prior.weight, prior.share)
    assert_array_equal(fast.weight, slow.weight)
    assert_array_equal(fast.share, slow.share)
    assert len(prior.neuron) == np.count_nonzero(slow.weight)
    for begin, end in zip(prior.begin[:-1], prior.begin[1:], strict=True):
        assert np.all(np.diff(prior.neuron[begin:end]) > 0)


@settings(deadline=None, max_examples=30)
@given(data(), st.integers(1, 4), st.integers(1, 4))
def test_shards_have_the_weights_of_their_labels(some, most, size):
    """Joined they equal one shard; split again they equal any other number of shards."""
    x, y = some
    whole = count(x, y, most).state()
    parts = [(shard := Shard(rank, size), count(x, y, most, shard=shard).state()) for rank in range(size)]
    for other in (1, 2, 3):
        for rank in range(other):
            found, expected = regrouped(parts, Shard(rank, other)), count(x, y, most, shard=Shard(rank, other)).state()
            for name in expected:
                assert_array_equal(found[name], expected[name], strict=True, err_msg=name)
    assert sum(len(part["prior.neuron"]) for _, part in parts) == len(whole["prior.neuron"])


def test_ties_go_to_the_lower_label():
    prior = count(rows_of([[1], [1], [1], [1]]), rows_of(np.eye(4)[[2, 0, 3, 1]]), 2)
    assert_array_equal(prior.neuron, [0, 1])
    assert_array_equal(prior.weight, [1, 1])


def test_weights_are_normalised_by_the_centroid_of_the_label():
    """By hand: label 0 has the rows (1, 0) and (1, 1) / sqrt(2), whatever their lengths were."""
    prior = count(rows_of([[5, 0], [0.25, 0.25]]), rows_of([[1], [1]]), 4)
    half = np.sqrt(0.5)
    length = np.hypot(1 + half, half)
    assert_allclose(prior.weight, [(1 + half) / length, half / length], rtol=1e-6)
    assert_allclose(prior.share, [1 / length], rtol=1e-6)


def test_less_power_favours_frequent_labels():
    """By hand: feature 0 occurs with label 0 in four rows (centroid length 4), with label 1 in one."""
    x, y = rows_of(np.ones((5, 1))), rows_of(np.eye(2)[[0, 0, 0, 0, 1]])
    for power, weights in ((0.0, [4, 1]), (0.5, [2, 1]), (1.0, [1, 1]), (2.0, [0.25, 1])):
        assert_allclose(count(x, y, 2, power=power).weight, weights, rtol=1e-6)
    assert count(x, y, 1, power=0.5).neuron.tolist() == [0]
    assert count(x, y, 1, power=2.0).neuron.tolist() == [1]


def test_lengths_of_rows_beyond_what_float32_can_square():
    x = rows_of([[3e38, 3e38], [1e-30, 0], [0, 0], [3, 4]])
    lengths = _core.row_norms(x.indptr, x.values)
    assert_allclose(lengths, [np.sqrt(2) * 3e38, 1e-30, 1, 5], rtol=1e-4)
    prior = count(x, rows_of(np.eye(4)), 4)
    assert_allclose(prior.weight, [np.sqrt(0.5), 1, 0.6, np.sqrt(0.5), 0.8], rtol=1e-4)


CASES = st.tuples(
    st.integers(1, 20), st.integers(1, 15), st.integers(1, 90), st.integers(1, 5), st.integers(0, 2**31)
)  # rows, features, labels, labels of a feature, seed


@settings(deadline=None)
@given(CASES, st.sampled_from(["everything", "shared"]), st.booleans(), st.sampled_from([1.0, 0.7]))
def test_added_logits_equal_those_of_the_reference(case, kind, trained, keep):
    rows, features, labels, most, seed = case
    x, matrix, _ = sparse_input(rows, features, seed)
    targets = make_targets(rows, labels, seed, softmax=False)
    prior = count(
        SparseRows(x.indptr, x.indices, x.values, features),
        SparseRows(targets.indptr, targets.indices, targets.values, labels),
        most,
        scale=3.0,
    )
    slow = SlowLabelPrior.of_arrays(prior.begin, prior.neuron, prior.weight, prior.share)
    expected = slow.added(matrix, 3.0, lengths_of(x), targets.matrix > 0 if trained else None, keep)
    found = []
    for threads in (1, 2):
        _core.set_threads(threads)
        active = make_active(kind, labels, rows, seed)
        prior.add(x, row_lengths(x), active, targets if trained else None, keep)
        found.append((active.prior_begin.copy(), active.prior_position.copy(), active.prior_value.copy()))
    for one, two in zip(*found, strict=True):
        assert_array_equal(one, two)
    begin, position, value = found[0]
    row = np.repeat(np.arange(rows), np.diff(begin))
    added = np.zeros((rows, labels))
    np.add.at(added, (row, active.ids[position]), value)
    assert len(set(zip(row.tolist(), position.tolist(), strict=True))) == len(row)  # each at most once in a row
    assert_allclose(added, np.where(np.isin(np.arange(labels), active.ids), expected, 0), rtol=1e-4, atol=1e-5)


def test_a_row_does_not_count_for_itself():
    """A label or feature that occurs only in this row adds nothing in training, whatever dropout leaves of the row."""
    x, y = rows_of([[1, 2, 0], [0, 0, 3]]), rows_of(np.eye(2))
    prior = count(x, y, 5)
    lengths = _core.row_norms(x.indptr, x.values)
    for keep, offsets, ids, values in ((1.0, x.indptr, x.indices, x.values), (0.5, [0, 1, 2], [1, 2], [4, 6])):
        active = _core.ActiveSet.everything(2, 2)
        arrays = np.array(offsets, np.int64), np.array(ids, np.int32), np.array(values, np.float32)
        prior._native.add(*arrays, lengths, active, y.indptr, y.indices, keep)
        assert_allclose(active.prior_value, 0, atol=1e-6)
        prior._native.add(*arrays, lengths, active)
        assert np.all(active.prior_value > 0.1)  # other rows get it


BEGIN, NEURON = np.array([0, 1, 3], np.int64), np.array([0, 1, 2], np.int32)


@pytest.mark.parametrize(
    ("begin", "neuron", "share", "why"),
    [
        ([0, 4, 3], [0, 1, 2], 3, "decrease"),
        ([1, 1, 3], [0, 1, 2], 3, "span"),
        ([0, 1, 2], [0, 1, 2], 3, "span"),
        ([0, 1, 3], [0, 1, 3], 3, "out of range"),
        ([0, 1, 3], [0, -1, 2], 3, "out of range"),
        ([], [], 3, "as many weights as neurons"),
    ],
)
def test_invalid_lists_are_refused(begin, neuron, share, why):
    begin, neuron = np.array(begin, np.int64), np.array(neuron, np.int32)
    with pytest.raises(ValueError, match=why):
        _core.LabelPrior(begin, neuron, np.zeros(len(neuron), np.float32), np.zeros(share, np.float32), 1.0)


def test_arguments_that_do_not_fit_are_refused():
    prior = _core.LabelPrior(BEGIN, NEURON, np.ones(3, np.float32), np.ones(3, np.float32), 1.0)
    x = np.array([0, 1], np.int64), np.array([1], np.int32), np.ones(1, np.float32)
    one = np.ones(1)
    for arguments, why in (
        ((*x, one, make_active("row", 3, 1, 0)), "not for active sets per row"),
        ((*x, one, _core.ActiveSet.everything(4, 1)), "an active neuron is out of range"),
        ((*x, np.ones(2), _core.ActiveSet.everything(3, 1)), "as many norms as rows"),
        ((x[0], np.array([2], np.int32), x[2], one, _core.ActiveSet.everything(3, 1)), "an id is out of range"),
        ((*x, one, _core.ActiveSet.everything(3, 1), x[0], np.array([3], np.int32)), "an id is out of range"),
    ):
        with pytest.raises(ValueError, match=why):
            prior.add(*arguments)
