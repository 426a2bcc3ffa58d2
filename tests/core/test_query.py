"""Queries of hash tables against their slow references."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import reference.hashing as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dslide import _core


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def filled_tables(neurons: int, tables: int, table_bits: int, seed: int, bound: int = 0) -> _core.Tables:
    """Tables in which a neuron's codes depend on a few hidden groups, so that counts differ."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 2**table_bits, (max(1, neurons // 5), tables))
    codes = groups[rng.integers(0, len(groups), neurons)]
    astray = rng.random(codes.shape) < 0.5
    codes[astray] = rng.integers(0, 2**table_bits, int(astray.sum()))
    table = _core.Tables(neurons, tables, table_bits, bound, "reservoir", seed)
    table.set_codes(np.arange(neurons, dtype=np.int32), codes.astype(np.uint32))
    table.rebuild()
    return table


def lists(offsets: np.ndarray, values: np.ndarray) -> list[list[int]]:
    return [values[a:b].tolist() for a, b in itertools.pairwise(offsets)]


@settings(max_examples=80, deadline=None)
@given(
    neurons=st.integers(1, 300),
    tables=st.integers(1, 12),
    table_bits=st.integers(1, 6),
    rows=st.integers(0, 9),
    want=st.sampled_from([None, 0, 1, 2, 7, 40, 10_000]),
    threshold=st.integers(1, 13),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**40),
    threads=st.sampled_from([1, 2, 5]),
)
def test_hits_are_those_of_the_reference(neurons, tables, table_bits, rows, want, threshold, seed, step, threads):
    _core.set_threads(threads)
    table = filled_tables(neurons, tables, table_bits, seed % 1000, bound=20)
    codes = np.random.default_rng(step).integers(0, 2**table_bits, (rows, tables), dtype=np.uint32)
    row_buckets = [[table.bucket(t, code).tolist() for t, code in enumerate(row)] for row in codes]
    query = _core.Query(table)
    for _ in range(2):  # the second time with used scratch
        assert lists(*query.vanilla(codes, want, seed, step)) == [
            reference.vanilla(buckets, want, seed, step, row) for row, buckets in enumerate(row_buckets)
        ]
        for found, at_least, most in [
            (query.topk(codes, want, seed, step), 1, want),
            (query.threshold(codes, threshold, want, seed, step), threshold, want),
            (query.candidates(codes), 1, None),
        ]:
            offsets, ids, counts, _ = found
            expected = [reference.counted(b, at_least, most, seed, step, row) for row, b in enumerate(row_buckets)]
            assert lists(offsets, ids) == [[neuron for neuron, _ in hits] for hits in expected]
            assert lists(offsets, counts) == [[count for _, count in hits] for hits in expected]


@pytest.mark.parametrize("neurons", [8192, 8193, 70_000])
@pytest.mark.parametrize("want", [5, None])
def test_neurons_that_share_a_slot_are_kept_apart(neurons, want):
    """Rows retrieve far more neurons than the filter of neurons seen before has slots."""
    table = filled_tables(neurons, tables=6, table_bits=2, seed=4)
    codes = np.random.default_rng(1).integers(0, 4, (3, 6), dtype=np.uint32)
    offsets, ids, counts, _ = _core.Query(table).topk(codes, want, 7, 8)
    for row, (found, times) in enumerate(zip(lists(offsets, ids), lists(offsets, counts), strict=True)):
        buckets = [table.bucket(t, code).tolist() for t, code in enumerate(codes[row])]
        assert list(zip(found, times, strict=True)) == reference.counted(buckets, 1, want, 7, 8, row)


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(1, 5), want=st.integers(1, 12), split=st.integers(0, 6), seed=st.integers(0, 2**64 - 1))
def test_best_ranked_hits_of_all_stripes_are_those_of_the_whole(ranks, want, split, seed):
    """Each rank queries tables of its own neurons, in two parts of the batch. The best ranked hits of all ranks are the
    ones that one process with all neurons picks."""
    neurons, tables, rows = 200, 6, 7
    codes = np.random.default_rng(seed % 99).integers(0, 8, (neurons, tables), dtype=np.uint32)
    asked = np.random.default_rng(seed % 98).integers(0, 8, (rows, tables), dtype=np.uint32)

    def query(first: int, step: int) -> _core.Query:
        own = codes[first::step]
        table = _core.Tables(len(own), tables, 3, 0, "reservoir", 0)
        table.set_codes(np.arange(len(own), dtype=np.int32), own)
        table.rebuild()
        return _core.Query(table, (first, step, 1))

    best: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
    for rank in range(ranks):
        part = query(rank, ranks)
        for begin, end in ((0, split), (split, rows)):
            offsets, ids, _, ranking = part.topk(asked[begin:end], want, seed, 3, begin)
            for row, (own, high) in enumerate(zip(lists(offsets, ids), lists(offsets, ranking), strict=True), begin):
                best[row] += zip(high, [i * ranks + rank for i in own], strict=True)
    expected = lists(*query(0, 1).topk(asked, want, seed, 3)[:2])
    assert [sorted(i for _, i in sorted(row, reverse=True)[:want]) for row in best] == expected


def test_hits_do_not_depend_on_the_number_of_threads():
    table = filled_tables(20_000, 16, 9, 1)
    codes = np.random.default_rng(2).integers(0, 2**9, (200, 16), dtype=np.uint32)
    query = _core.Query(table)
    results = []
    for threads in 1, 2, 5:
        _core.set_threads(threads)
        results.append([*query.vanilla(codes, 50, 3, 4), *query.topk(codes, 50, 3, 4), *query.candidates(codes)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_neuron_found_in_every_table_comes_first():
    table = filled_tables(5000, 10, 6, 5)
    own = np.array([[next(b for b in range(64) if 123 in table.bucket(t, b)) for t in range(10)]], dtype=np.uint32)
    _, ids, counts, _ = _core.Query(table).topk(own, 1, 0, 0)
    assert ids.tolist() == [123]
    assert counts.tolist() == [10]


def one_bucket(neurons: int) -> _core.Tables:
    table = _core.Tables(neurons, 2, 1, 0, "fifo", 0)
    table.set_codes(np.arange(neurons, dtype=np.int32), np.zeros((neurons, 2), dtype=np.uint32))
    table.rebuild()
    return table


@pytest.mark.parametrize("mode", ["vanilla", "topk"])
def test_which_hits_are_cut_off_does_not_depend_on_neuron_numbers(mode):
    # All 50 neurons are in one bucket, 5 are wanted: over steps and rows each should be taken equally often.
    query = _core.Query(one_bucket(50))
    codes = np.zeros((100, 2), dtype=np.uint32)
    taken = np.zeros(50)
    for step in range(40):
        offsets, ids = getattr(query, mode)(codes, 5, 1, step)[:2]
        assert (np.diff(offsets) == 5).all()
        taken += np.bincount(ids, minlength=50)
    # vanilla takes runs of neighbours, whose counts are dependent: 5 times the variance at most.
    scale = 5 if mode == "vanilla" else 1
    assert stats.chi2.sf(((taken - 400) ** 2 / 400).sum() / scale, 49) > 0.0005


def test_the_smallest_random_tie_break_wins_in_every_row():
    # So many rows that in some the fast path, which skips most tie-breaks, finds none and all are compared.
    rows, neurons = 30_000, 60
    _, ids, *_ = _core.Query(one_bucket(neurons)).topk(np.zeros((rows, 2), dtype=np.uint32), 1, 0, 0)
    step_key = reference.mix(0, 0)
    keys = reference.mix_array(np.uint64(step_key) ^ np.arange(rows, dtype=np.uint64))
    tie_breaks = reference.mix_array(reference.mix_array(keys)[:, None] ^ np.arange(neurons, dtype=np.uint64))
    np.testing.assert_array_equal(ids, (tie_breaks >> np.uint64(32)).argmin(axis=1))


def test_tie_breaks_differ_between_steps_rows_and_seeds():
    query = _core.Query(one_bucket(1000))
    codes = np.zeros((2, 2), dtype=np.uint32)
    picks = [row for seed in (0, 1) for step in (0, 1) for row in lists(*query.topk(codes, 10, seed, step)[:2])]
    assert len({tuple(pick) for pick in picks}) == 8


def test_empty_tables_give_no_hits():
    query = _core.Query(_core.Tables(10, 3, 4, 0, "fifo", 0))
    codes = np.zeros((2, 3), dtype=np.uint32)
    for found in query.vanilla(codes, 5, 0, 0), query.topk(codes, 5, 0, 0), query.candidates(codes):
        assert found[0].tolist() == [0, 0, 0]
        assert found[1].tolist() == []


def test_a_query_sees_rebuilt_tables():
    table = one_bucket(4)
    query = _core.Query(table)
    table.set_codes(np.array([2], dtype=np.int32), np.ones((1, 2), dtype=np.uint32))
    table.rebuild()
    assert query.candidates(np.ones((1, 2), dtype=np.uint32))[1].tolist() == [2]


def test_several_python_threads_may_query_at_once():
    table = filled_tables(3000, 8, 6, 9)
    codes = np.random.default_rng(3).integers(0, 64, (40, 8), dtype=np.uint32)
    query = _core.Query(table)
    expected = query.topk(codes, 20, 1, 1)[1]
    wrong: list[int] = []

    def ask() -> None:
        for i in range(30):
            if not np.array_equal(query.topk(codes, 20, 1, 1)[1], expected):
                wrong.append(i)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert wrong == []


def test_bad_arguments_are_refused_and_leave_the_query_usable():
    query = _core.Query(one_bucket(4))
    good = np.zeros((1, 2), dtype=np.uint32)
    with pytest.raises(ValueError, match="row 1: codes must be below 2, not 7"):
        query.topk(np.array([[0, 0], [0, 7]], dtype=np.uint32), 2, 0, 0)
    with pytest.raises(ValueError, match="the number of columns of codes must be 2, not 3"):
        query.vanilla(np.zeros((1, 3), dtype=np.uint32), 2, 0, 0)
    with pytest.raises(ValueError, match="threshold must be 1 to 65535, not 0"):
        query.threshold(good, 0, None, 0, 0)
    assert query.candidates(good)[1].tolist() == [0, 1, 2, 3]
