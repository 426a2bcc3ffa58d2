"""Linear classifiers against the slow version in reference/linear.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference.linear as slow
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide import _core
from dslide.util.csr import Lists, indptr_of


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def lists(rows: list[Any]) -> Lists:
    return Lists(indptr_of(np.array([len(row) for row in rows])), np.concatenate([[], *rows]).astype(np.int32))


def examples(labels: int, rows: int, seed: int) -> tuple[Lists, Lists]:
    """For each label some rows that have it and some others; the first label has none of its own."""
    rng = np.random.default_rng(seed)
    positive, negative = [], []
    for label in range(labels):
        order = rng.permutation(rows)
        own, others = (rng.integers(1, rows // 3 + 2), rng.integers(0, rows // 2 + 1)) if label else (0, rows // 2)
        positive.append(np.sort(order[:own]))
        negative.append(np.sort(order[own : own + others]))
    return lists(positive), lists(negative)


def some_rows(rows: int, features: int, seed: int) -> sp.csr_matrix:
    """The last row is empty."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 3, (rows, features)) * (rng.random((rows, features)) < 0.4)
    values[rows - 1] = 0
    return sp.csr_matrix(values.astype(np.float32))


def train(x: sp.csr_matrix, positive: Lists, negative: Lists, costs: list[float], **options: Any) -> Any:
    offsets, ids = x.indptr.astype(np.int64), x.indices.astype(np.int32)
    numbers = np.arange(positive.rows, dtype=np.int32)
    return _core.train_linear(
        offsets, ids, x.data, _core.row_norms(offsets, x.data), x.shape[1], positive.indptr, positive.indices,
        negative.indptr, negative.indices, numbers, np.array(costs, np.float32), **options,
    )  # fmt: skip


def dense(x: sp.csr_matrix) -> np.ndarray:
    whole = x.toarray().astype(np.float64)
    lengths = np.linalg.norm(whole, axis=1, keepdims=True)
    return whole / np.where(lengths == 0, 1, lengths)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 30), st.integers(1, 9), st.integers(2, 6), st.sampled_from([0.1, 1.0, 7.0]), st.integers(0, 99))
def test_weights_are_those_of_the_least_loss(rows: int, features: int, labels: int, cost: float, seed: int) -> None:
    x, (positive, negative) = some_rows(rows, features, seed), examples(labels, rows, seed)
    ((begin, feature, weight, bias),) = train(x, positive, negative, [cost], tolerance=1e-5, passes=5000)
    found = sp.csr_matrix((weight, feature, begin), (labels, features)).toarray()
    for label in range(1, labels):
        own, others = (each.indices[slice(*each.indptr[label : label + 2])] for each in (positive, negative))
        expected = slow.train(dense(x), own, others, cost)
        np.testing.assert_allclose(np.append(found[label], bias[label]), expected, atol=2e-3)
    assert begin[1] == 0  # a label without rows
    assert bias[0] == -1


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 30), st.integers(1, 9), st.integers(2, 6), st.sampled_from([0.1, 1.0]), st.integers(0, 99))
def test_a_sample_that_has_all_other_rows_is_all_of_them(
    rows: int, features: int, labels: int, cost: float, seed: int
) -> None:
    x, (positive, negative) = some_rows(rows, features, seed), examples(labels, rows, seed)
    exact = {"tolerance": 1e-5, "passes": 5000}
    ((begin, feature, weight, bias),) = train(x, positive, negative, [cost], others=rows, **exact)
    found = sp.csr_matrix((weight, feature, begin), (labels, features)).toarray()
    for label in range(1, labels):
        own = positive.indices[slice(*positive.indptr[label : label + 2])]
        expected = slow.train(dense(x), own, np.setdiff1d(np.arange(rows), own), cost)
        np.testing.assert_allclose(np.append(found[label], bias[label]), expected, atol=2e-3)


def test_other_rows_are_sampled_from_those_that_are_not_used_yet() -> None:
    # Every row has a feature of its own, whose weight is not 0 if the row was trained on.
    ((_, feature, _, _),) = train(sp.identity(40, np.float32, "csr"), lists([[0, 1]]), lists([[2, 3]]), [1.0], others=7)
    assert {0, 1, 2, 3} < set(feature.tolist())
    assert len(set(feature.tolist())) == 11


def test_a_cost_gives_the_same_from_where_another_ended() -> None:
    x, (positive, negative) = some_rows(60, 20, 1), examples(8, 60, 1)
    exact = {"tolerance": 1e-5, "passes": 5000}
    after = train(x, positive, negative, [0.3, 2.0], **exact)[1]
    (alone,) = train(x, positive, negative, [2.0], **exact)
    for one, other in zip(after, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


def test_threads_give_the_same_bits() -> None:
    x, (positive, negative) = some_rows(80, 30, 2), examples(40, 80, 2)
    found = []
    for threads in (1, 3):
        _core.set_threads(threads)
        found.append(train(x, positive, negative, [0.3, 1.0]))
    for one, other in zip(*found, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_only_the_largest_weights_are_kept() -> None:
    x, (positive, negative) = some_rows(60, 40, 3), examples(5, 60, 3)
    ((begin, _, weight, _),) = train(x, positive, negative, [1.0])
    ((few_begin, few_feature, few, _),) = train(x, positive, negative, [1.0], weights_per_row=1)
    for label in range(5):
        every = np.sort(np.abs(weight[begin[label] : begin[label + 1]]))[::-1]
        most = positive.indptr[label + 1] - positive.indptr[label]
        kept = slice(few_begin[label], few_begin[label + 1])
        np.testing.assert_array_equal(np.sort(np.abs(few[kept]))[::-1], every[:most])
        assert (np.diff(few_feature[kept]) > 0).all()
    ((_, _, large, _),) = train(x, positive, negative, [1.0], least=0.1)
    np.testing.assert_array_equal(np.sort(large), np.sort(weight[np.abs(weight) >= np.float32(0.1)]))


@pytest.mark.parametrize(
    ("per_row", "least", "expected"), [(2, 0, [4, 2, 20]), (2, 7, [7, 7, 20]), (99, 0, [30, 30, 30])]
)
def test_a_label_is_trained_against_a_bounded_number_of_rows(per_row: int, least: int, expected: list[int]) -> None:
    # Every row has a feature of its own, whose weight is not 0 if the row was trained on.
    own = [[0, 1], [2], list(range(10))]
    negative = lists([np.arange(10, 40)] * 3)
    ((begin, feature, _, _),) = train(
        sp.identity(40, np.float32, "csr"), lists(own), negative, [1.0], negatives_per_row=per_row,
        least_negatives=least,
    )  # fmt: skip
    used = [set(feature[begin[label] : begin[label + 1]].tolist()) for label in range(3)]
    assert [len(some - set(rows)) for some, rows in zip(used, own, strict=True)] == expected
    assert all(set(rows) <= some for some, rows in zip(used, own, strict=True))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 7), st.integers(0, 5), st.integers(0, 99))
def test_scores_are_products(rows: int, features: int, labels: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weights = some_rows(rows, features, seed), some_rows(labels, features, seed + 1)
    bias, ids = rng.normal(size=labels).astype(np.float32), rng.integers(-1, labels, (rows, count)).astype(np.int32)
    arrays = weights.indptr.astype(np.int64), weights.indices.astype(np.int32), weights.data, bias
    offsets, columns = x.indptr.astype(np.int64), x.indices.astype(np.int32)
    scores = np.empty(ids.shape, np.float32)
    native = _core.LinearClassifiers(*arrays, features)
    native.scores(offsets, columns, x.data, _core.row_norms(offsets, x.data), ids, scores)
    every = dense(x) @ weights.toarray().T + bias
    expected = np.where(ids >= 0, np.take_along_axis(every, np.maximum(ids, 0), axis=1), 0)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    x, (positive, negative) = some_rows(9, 4, 0), examples(3, 9, 0)
    with pytest.raises(ValueError, match="an id is out of range"):
        train(x, lists([[9], [0], [1]]), negative, [1.0])
    with pytest.raises(ValueError, match="expected costs"):
        train(x, positive, negative, [0.0])
    with pytest.raises(ValueError, match="as many numbers as labels"):
        _core.train_linear(
            x.indptr.astype(np.int64), x.indices.astype(np.int32), x.data, np.ones(9), 4, positive.indptr,
            positive.indices, negative.indptr, negative.indices, np.zeros(2, np.int32), np.ones(1, np.float32),
        )  # fmt: skip
    begin, empty = np.zeros(3, np.int64), np.zeros(0, np.int32)
    native = _core.LinearClassifiers(begin, empty, np.zeros(0, np.float32), np.zeros(2, np.float32), 4)
    one = np.zeros(2, np.int64), empty, np.zeros(0, np.float32), np.ones(1)
    with pytest.raises(ValueError, match="a label is out of range"):
        native.scores(*one, np.array([[2]], np.int32), np.zeros((1, 1), np.float32))
