"""Candidates of approximate prediction, compared with sets and sorting."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.retrieval import best_of_prior, joined

from dslide import _core
from dslide.util.csr import Lists, indptr_of

NEURONS = 40
id_sets = st.sets(st.integers(0, NEURONS - 1), max_size=NEURONS)


def lists_of(rows: list[list[int]]) -> Lists:
    return Lists(indptr_of([len(row) for row in rows]), np.array([id for row in rows for id in row], np.int32))


def as_rows(offsets: np.ndarray, ids: np.ndarray) -> list[list[int]]:
    return [ids[begin:end].tolist() for begin, end in pairwise(offsets)]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(0, 9), st.booleans(), st.booleans())
def test_lists_are_joined_as_sets_are(data, cells, rows, has_more, has_excluded):
    lists = [sorted(data.draw(id_sets)) for _ in range(cells)]
    list_of = np.array([data.draw(st.integers(0, cells - 1)) for _ in range(rows)], np.int32)
    more = [sorted(data.draw(id_sets)) if has_more else [] for _ in range(rows)]
    excluded = [sorted(data.draw(id_sets)) if has_excluded else [] for _ in range(rows)]
    optional = [
        (each.indptr, each.indices) if given else (None, None)
        for each, given in ((lists_of(more), has_more), (lists_of(excluded), has_excluded))
    ]
    given = lists_of(lists)
    found = as_rows(*_core.join_candidates(NEURONS, given.indptr, given.indices, list_of, *optional[0], *optional[1]))
    assert found == [joined(lists[list_of[i]], more[i], excluded[i]) for i in range(rows)]


def test_lists_that_are_damaged_are_refused():
    lists, one = lists_of([[1, 3], [5, 2], [NEURONS]]), np.zeros(1, np.int32)
    for list_of, message in ((1, "in order"), (2, "out of range"), (3, "no such list"), (-1, "no such list")):
        with pytest.raises(ValueError, match=message):
            _core.join_candidates(NEURONS, lists.indptr, lists.indices, one + list_of)
    assert as_rows(*_core.join_candidates(NEURONS, lists.indptr, lists.indices, one)) == [[1, 3]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(0, 12), st.sampled_from([1, 2, 3]))
def test_the_best_labels_of_a_prior_are_those_of_sorting(seed, rows, want, size):
    """Many sums are equal. Over ranks, the union of those whose keys are among the best is that of one rank."""
    rng = np.random.default_rng(seed)
    features = rng.integers(0, 3, (rows, NEURONS)) * rng.integers(0, 2, (rows, NEURONS))
    bias = rng.integers(-1, 2, NEURONS).astype(np.float32)
    values = [{int(n): float(row[n]) for n in np.flatnonzero(row)} for row in features]
    every, keys = [[] for _ in range(rows)], [[] for _ in range(rows)]
    for rank in range(size):
        own = features[:, rank::size]
        prior = with_prior(own.astype(np.float32))
        found = _core.prior_candidates(prior, np.ascontiguousarray(bias[rank::size]), want, (rank, size, 1))
        for i, neurons in enumerate(as_rows(*found[:2])):
            assert len(neurons) <= want
            every[i] += [n * size + rank for n in neurons]
            keys[i] += found[2][found[0][i] : found[0][i + 1]].tolist()
    for i in range(rows):
        best = sorted(zip(keys[i], every[i], strict=True), reverse=True)[:want]
        assert sorted(n for _, n in best) == best_of_prior(values[i], bias, want)


def with_prior(values: np.ndarray) -> _core.PriorLogits:
    """The logits of a prior of these values: row i has feature i alone, which is linked to its labels."""
    rows, neurons = values.shape
    row, label = np.nonzero(values)
    begin = indptr_of(np.bincount(row, minlength=rows))
    prior = _core.LabelPrior(
        begin, label.astype(np.int32), np.ascontiguousarray(values[row, label]), np.zeros(neurons, np.float32),
        np.full(neurons, 5, np.int32), None, np.ones(_core.LabelPrior.SCALES, np.float32),
    )  # fmt: skip
    each = np.arange(rows + 1, dtype=np.int64)
    return prior.logits(each, each[:-1].astype(np.int32), np.ones(rows, np.float32), np.ones(rows))


def test_keys_order_as_logits_do_and_equal_ones_by_neuron():
    logits = np.array([np.nan, -np.inf, -2.5, -0.0, 0.0, 1e-30, 3.0, 3.0, np.inf], np.float32)
    keys = _core.rank_keys(logits, np.array([0, 1, 2, 4, 3, 5, 7, 6, 8], np.int32))
    assert keys.tolist() == sorted(keys.tolist())
    assert len(set(keys.tolist())) == len(keys)
    assert keys[0] > 0
