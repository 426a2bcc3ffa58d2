"""The label prior, counted and added to logits, against the slow version in reference/label_prior.py."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from reference.label_prior import SlowLabelPrior, lengths_of
from reference.network import Activity, sigmoid_loss
from support.layer_cases import make_active, make_targets, sparse_input

from dslide import _core
from dslide.config import Config
from dslide.data import SparseRows
from dslide.model.label_prior import SCALES, LabelPrior, regrouped, row_lengths
from dslide.model.sharding import WHOLE, Shard
from dslide.util.arrays import aligned_zeros
from dslide.util.csr import Csr


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def count(
    x: SparseRows, y: SparseRows, most: int, same: bool = False, shard: Shard = WHOLE, scale: float = 1.0,
    power: float = 1.0, rate: float = 0.0,
) -> LabelPrior:  # fmt: skip
    config = Config(prior_labels=most, prior_scale=scale, prior_power=power, prior_learning_rate=rate)
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
@given(
    data(), st.integers(1, 8), st.booleans(), st.booleans(), st.integers(1, 3), st.sampled_from([0.0, 0.5, 1.0, 2.0])
)
def test_counts_equal_those_of_the_reference(some, most, same, trained, threads, power):
    x, y = some
    _core.set_threads(threads)
    prior = count(x, y, most, same, power=power, rate=float(trained))
    slow = SlowLabelPrior.count(x, y, most, same, power, by_gain=trained)
    fast = SlowLabelPrior.of_prior(prior)
    for name in ("weight", "share", "rows"):
        assert_array_equal(getattr(fast, name), getattr(slow, name), err_msg=name)
    neuron, begin = prior.arrays["neuron"], prior.arrays["begin"]
    assert len(neuron) == np.count_nonzero(slow.weight)
    for first, last in pairwise(begin):
        assert np.all(np.diff(neuron[first:last]) > 0)


@settings(deadline=None, max_examples=30)
@given(data(), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.sampled_from([(), (1, 3, 2, 1)]))
def test_shards_have_the_weights_of_their_labels(some, most, size, trained, shares):
    """Joined they equal one shard; split again they equal any other number of shards."""
    x, y = some

    def state_of(shard: Shard) -> dict[str, Any]:
        state = count(x, y, most, shard=shard, rate=float(trained)).state()
        if trained:  # each link another number
            labels = shard.to_global(state["prior.neuron"])
            feature = np.repeat(np.arange(x.columns), np.diff(state["prior.begin"]))
            state["prior.trained"] = (feature * 100 + labels).astype(np.float32)
        return state

    whole = state_of(WHOLE)
    parts = [(shard := Shard(rank, size, shares[:size]), state_of(shard)) for rank in range(size)]
    for other in (1, 2, 3):
        for rank in range(other):
            shard = Shard(rank, other, shares[:other])
            found, expected = regrouped(parts, shard), state_of(shard)
            for name in expected:
                assert_array_equal(found[name], expected[name], strict=True, err_msg=name)
    assert sum(len(part["prior.neuron"]) for _, part in parts) == len(whole["prior.neuron"])


def test_ties_go_to_the_lower_label():
    prior = count(rows_of([[1], [1], [1], [1]]), rows_of(np.eye(4)[[2, 0, 3, 1]]), 2)
    assert_array_equal(prior.arrays["neuron"], [0, 1])
    assert_array_equal(prior.arrays["weight"], [1, 1])


def test_weights_are_normalised_by_the_centroid_of_the_label():
    """By hand: label 0 has the rows (1, 0) and (1, 1) / sqrt(2), whatever their lengths were."""
    prior = count(rows_of([[5, 0], [0.25, 0.25]]), rows_of([[1], [1]]), 4)
    half = np.sqrt(0.5)
    length = np.hypot(1 + half, half)
    assert_allclose(prior.arrays["weight"], [(1 + half) / length, half / length], rtol=1e-6)
    assert_allclose(prior.arrays["share"], [1 / length], rtol=1e-6)
    assert_array_equal(prior.arrays["rows"], [2])


def test_less_power_favours_frequent_labels():
    """By hand: feature 0 occurs with label 0 in four rows (centroid length 4), with label 1 in one."""
    x, y = rows_of(np.ones((5, 1))), rows_of(np.eye(2)[[0, 0, 0, 0, 1]])
    for power, weights in ((0.0, [4, 1]), (0.5, [2, 1]), (1.0, [1, 1]), (2.0, [0.25, 1])):
        assert_allclose(count(x, y, 2, power=power).arrays["weight"], weights, rtol=1e-6)
    assert count(x, y, 1, power=0.5).arrays["neuron"].tolist() == [0]
    assert count(x, y, 1, power=2.0).arrays["neuron"].tolist() == [1]


def test_a_trained_prior_has_the_labels_that_a_feature_tells_most_about():
    """By hand: of 8 rows, 4 have the feature. Label 0 is in 3 rows, all with it: 3 log 2. Label 1 is in one row, with
    it: log 2. Label 2 is in 6 rows, 3 with it: 3 log 1 = 0, though its sum of values is as large as that of label 0."""
    x = rows_of([[1], [1], [1], [1], [0], [0], [0], [0]])
    y = rows_of([[1, 0, 1], [1, 0, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 0]])
    for most, labels in ((1, [0]), (2, [0, 1]), (3, [0, 1, 2])):
        assert count(x, y, most, rate=1.0).arrays["neuron"].tolist() == labels


def test_lengths_of_rows_beyond_what_float32_can_square():
    x = rows_of([[3e38, 3e38], [1e-30, 0], [0, 0], [3, 4]])
    lengths = _core.row_norms(x.indptr, x.values)
    assert_allclose(lengths, [np.sqrt(2) * 3e38, 1e-30, 1, 5], rtol=1e-4)
    prior = count(x, rows_of(np.eye(4)), 4)
    assert_allclose(prior.arrays["weight"], [np.sqrt(0.5), 1, 0.6, np.sqrt(0.5), 0.8], rtol=1e-4)


CASES = st.tuples(
    st.integers(1, 20), st.integers(1, 15), st.integers(1, 90), st.integers(1, 5), st.integers(0, 2**31)
)  # rows, features, labels, labels of a feature, seed
MANY_LABELS = st.tuples(
    st.integers(1, 4), st.integers(1, 15), st.sampled_from([1023, 1024, 3000]), st.integers(1, 60),
    st.integers(0, 2**31),
)  # fmt: skip


@dataclass
class Case:
    """A prior with weights at random, the rows that it was counted on, and their targets."""

    x: Csr
    matrix: Any
    targets: Any
    prior: LabelPrior

    @classmethod
    def make(cls, case: tuple[int, ...], rate: float = 1.0) -> Case:
        rows, features, labels, most, seed = case
        x, matrix, _ = sparse_input(rows, features, seed)
        targets = make_targets(rows, labels, seed, softmax=False)
        counted = SparseRows(x.indptr, x.indices, x.values, features)
        y = SparseRows(targets.indptr, targets.indices, targets.values, labels)
        prior = count(counted, y, most, scale=3.0, rate=rate)
        rng = np.random.default_rng(seed)
        prior.arrays["scale"][:] = rng.uniform(0, 4, len(prior.arrays["scale"]))
        prior.arrays["trained"][:] = rng.standard_normal(len(prior.arrays["trained"]))
        return cls(x, matrix, targets, prior)


@settings(deadline=None)
@given(CASES, st.sampled_from(["everything", "shared"]), st.booleans(), st.sampled_from([1.0, 0.7]), st.booleans())
def test_added_logits_equal_those_of_the_reference(case, kind, training, keep, trained):
    rows, _, labels, _, seed = case
    made = Case.make(case, float(trained))
    own = made.targets.matrix > 0 if training else None
    expected = SlowLabelPrior.of_prior(made.prior).added(made.matrix, lengths_of(made.x), own, keep)
    found = []
    for threads in (1, 2):
        _core.set_threads(threads)
        active = make_active(kind, labels, rows, seed)
        x = dataclasses.replace(made.x)  # without groups that were made with other threads
        made.prior.add(x, row_lengths(x), active, made.targets if training else None, keep)
        found.append((active.prior_begin.copy(), active.prior_position.copy(), active.prior_value.copy()))
    for one, two in zip(*found, strict=True):
        assert_array_equal(one, two)
    begin, position, value = found[0]
    row = np.repeat(np.arange(rows), np.diff(begin))
    added = np.zeros((rows, labels))
    np.add.at(added, (row, active.ids[position]), value)
    assert len(set(zip(row.tolist(), position.tolist(), strict=True))) == len(row)  # each at most once in a row
    assert_allclose(added, np.where(np.isin(np.arange(labels), active.ids), expected, 0), rtol=1e-4, atol=1e-5)


@settings(deadline=None)
@given(CASES, st.sampled_from([0.5, 1.0]))
def test_logits_in_prediction_are_those_of_all_neurons(case, boost):
    rows, _, labels, _, _ = case
    made = Case.make(case)
    active = _core.ActiveSet.everything(labels, rows)
    made.prior.add(made.x, row_lengths(made.x), active, boost=boost)
    for threads in (1, 3):
        _core.set_threads(threads)
        found = made.prior.logits(made.x, boost)
        assert_array_equal(found.begin, active.prior_begin)
        assert_array_equal(found.neuron, active.prior_position)
        assert_array_equal(found.value, active.prior_value)


@settings(deadline=None)
@given(
    st.one_of(CASES, MANY_LABELS), st.sampled_from([1, 6, 17, 40]), st.sampled_from([(0, 1), (1, 3), (1, 2, (1, 4))])
)
def test_the_labels_that_rows_are_taken_for_are_those_of_the_reference(case, want, stripe):
    rows, _, labels, _, seed = case
    made = Case.make(case)
    bias = np.random.default_rng(seed).standard_normal(labels).astype(np.float32)
    slow = SlowLabelPrior.of_prior(made.prior)
    sums = slow.added(made.matrix, lengths_of(made.x)) + bias
    possible = ((made.matrix != 0).astype(float) @ (slow.weight != 0) > 0) & ~(made.targets.matrix > 0)
    for threads in (1, 3):
        _core.set_threads(threads)
        x = dataclasses.replace(made.x)  # without groups that were made with other threads
        hits = made.prior.look_up(x, row_lengths(x), made.targets, bias, want, Shard(*stripe))
        for row in range(rows):
            some = slice(hits.lists.indptr[row], hits.lists.indptr[row + 1])
            found, keys = hits.lists.indices[some], hits.ranking[some]
            assert possible[row, found].all()
            assert len(set(found.tolist())) == len(found) == min(want, possible[row].sum())
            best = -np.sort(-sums[row, possible[row]])[: len(found)]
            assert_allclose(sums[row, found], best, rtol=1e-3, atol=1e-3)  # keys are rounded
            assert np.all(np.diff(keys.astype(np.int64)) <= 0)
            assert np.all(keys > 0)


@settings(deadline=None)
@given(CASES, st.sampled_from(["everything", "shared"]), st.sampled_from([0.1, 3.0]))
def test_a_step_is_that_of_the_reference(case, kind, rate):
    """Along gradients at random, large ones too, of an output layer whose weights are 0."""
    rows, _, labels, _, seed = case
    made = Case.make(case)
    slow = SlowLabelPrior.of_prior(made.prior)
    start, results = made.prior.arrays["trained"].copy(), []
    for threads in (1, 2):
        _core.set_threads(threads)
        made.prior.arrays["trained"][:] = start
        active = make_active(kind, labels, rows, seed)
        features = dataclasses.replace(made.x)  # without groups that were made with other threads
        made.prior.add(features, row_lengths(features), active, made.targets)
        z = slow.added(made.matrix, lengths_of(made.x), made.targets.matrix > 0)
        output = dense_layer(labels)
        found = _core.FoundLabels(active, made.targets.indptr, made.targets.indices, made.targets.values)
        x = np.zeros((rows, 16), np.float32)
        output.sigmoid_learn(x, active, found, 1 / rows, np.empty_like(x), _core.Optimizer("sgd", 0, 0, 0, 0))
        gradient = made.prior.learn(features, row_lengths(features), active, rate)
        results.append((made.prior.arrays["trained"].copy(), gradient))
    for one, two in zip(*results, strict=True):
        assert_array_equal(one, two)
    activity = Activity.of(active, labels)
    _, dz = sigmoid_loss(z, activity, made.targets.matrix)
    dz = np.where(activity.mask, dz, 0) / rows
    by_scale = slow.learn(made.matrix, dz, rate, made.targets.matrix > 0, lengths_of(made.x))
    assert_allclose(results[0][1], by_scale, rtol=1e-3, atol=1e-4)
    assert_allclose(SlowLabelPrior.of_prior(made.prior).trained, slow.trained, rtol=1e-3, atol=1e-4)


@settings(deadline=None)
@given(CASES)
def test_groups_made_once_change_nothing(case):
    """What a step does with the groups of its batch is what each stage does with groups of its own."""
    rows, _, labels, _, seed = case
    made = Case.make(case)
    x, norms, start = made.x, row_lengths(made.x), made.prior.arrays["trained"].copy()
    arrays, bias = (x.indptr, x.indices, x.values), np.zeros(labels, np.float32)
    own = made.targets.indptr, made.targets.indices
    for threads in (1, 3):
        _core.set_threads(threads)
        results = []
        for groups in (None, _core.GroupedInputs(*arrays)):
            made.prior.arrays["trained"][:] = start
            prior, active = made.prior._native, make_active("shared", labels, rows, seed)
            best, keys = np.empty((rows, 3), np.int32), np.empty((rows, 3), np.uint32)
            prior.best(*arrays, norms, *own, bias, (0, 1, 1), best, keys, groups)
            prior.add(*arrays, norms, active, *own, 1.0, groups)
            added, gradient = active.prior_value.copy(), np.zeros(SCALES)
            found = _core.FoundLabels(active, *own, made.targets.values)
            hidden = np.zeros((rows, 16), np.float32)
            optimizer = _core.Optimizer("sgd", 0, 0, 0, 0)
            dense_layer(labels).sigmoid_learn(hidden, active, found, 1 / rows, np.empty_like(hidden), optimizer)
            prior.learn(*arrays, norms, active, 0.5, gradient, groups)
            results.append((best, keys, added, gradient, made.prior.arrays["trained"].copy()))
        for without, given_ones in zip(*results, strict=True):
            assert_array_equal(without, given_ones)


def no_rows() -> tuple[Any, Any, Any]:
    return np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)


def dense_layer(labels: int) -> Any:
    """An output layer of 16 inputs whose weights and biases are 0."""
    none, clock = np.zeros((0, 0), np.float32), np.zeros(labels, np.uint32)
    weights, bias = aligned_zeros(labels, 16), aligned_zeros(labels, 1)
    parameters = [
        _core.Parameters(array, none, none, clock.copy(), width) for array, width in ((weights, 16), (bias, 1))
    ]
    return _core.DenseLayer(*parameters)


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
    with pytest.raises(ValueError, match=why):
        native(begin, neuron, share)


def native(begin: Any, neuron: Any, labels: int = 3, **changes: Any) -> _core.LabelPrior:
    zeros = np.zeros(len(neuron), np.float32)
    arguments = {
        "begin": np.array(begin, np.int64), "neuron": np.array(neuron, np.int32), "weight": zeros,
        "share": np.zeros(labels, np.float32), "rows": np.zeros(labels, np.int32), "trained": zeros.copy(),
        "scale": np.ones(SCALES, np.float32),
    }  # fmt: skip
    return _core.LabelPrior(*(arguments | changes).values())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"trained": np.zeros(2, np.float32)}, "as many trained weights as counted ones"),
        ({"rows": np.zeros(4, np.int32)}, "as many numbers of rows as shares"),
        ({"scale": np.zeros(3, np.float32)}, "as many scales as buckets"),
    ],
)
def test_arrays_of_other_lengths_are_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        native(BEGIN, NEURON, **changes)


def test_arguments_that_do_not_fit_are_refused():
    prior = native(BEGIN, NEURON)
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
    untouched = _core.ActiveSet.everything(3, 1)
    with pytest.raises(ValueError, match="was not added for training"):
        prior.learn(*x, one, untouched, 1.0, np.zeros(SCALES))
    labels = np.array([0, 1], np.int64), np.array([0], np.int32)
    results = np.zeros((1, 2), np.int32), np.zeros((1, 2), np.uint32)
    with pytest.raises(ValueError, match="as many biases as neurons"):
        prior.best(*x, one, *labels, np.zeros(2, np.float32), (0, 1, 1), *results)
    for other in (_core.GroupedInputs(x[0], np.array([5], np.int32), x[2]), _core.GroupedInputs(*no_rows())):
        with pytest.raises(ValueError, match="groups of another batch"):
            prior.best(*x, one, *labels, np.zeros(3, np.float32), (0, 1, 1), *results, other)
        with pytest.raises(ValueError, match="groups of another batch"):
            prior.add(*x, one, _core.ActiveSet.everything(3, 1), groups=other)
    with pytest.raises(ValueError, match="as many results as rows"):
        prior.best(*x, one, *labels, np.zeros(3, np.float32), (0, 1, 1), results[0], np.zeros((2, 2), np.uint32))
