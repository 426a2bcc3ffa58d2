"""CSR lists and matrices against lists of Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslide.util.csr import Csr, Lists, indptr_of

ROWS = st.lists(st.lists(st.tuples(st.integers(0, 99), st.floats(-4, 4, width=32)), max_size=5), max_size=7)
Rows = list[list[tuple[int, float]]]


def csr_of(rows: Rows) -> Csr:
    flat = [element for row in rows for element in row]
    indices = np.array([column for column, _ in flat], np.int32)
    values = np.array([value for _, value in flat], np.float32)
    return Csr(indptr_of(np.array([len(row) for row in rows], np.int64)), indices, values)


def lists_of(rows: Rows) -> Lists:
    csr = csr_of(rows)
    return Lists(csr.indptr, csr.indices)


def rows_of(csr: Csr) -> Rows:
    assert (csr.indptr.dtype, csr.indices.dtype, csr.values.dtype) == (np.int64, np.int32, np.float32)
    flat = list(zip(csr.indices.tolist(), csr.values.tolist(), strict=True))
    assert (csr.indptr[0], csr.indptr[-1], csr.nnz) == (0, len(flat), len(flat))
    return [flat[csr.indptr[i] : csr.indptr[i + 1]] for i in range(csr.rows)]


def indices_of(lists: Lists) -> list[list[int]]:
    assert (lists.indptr.dtype, lists.indices.dtype) == (np.int64, np.int32)
    return [lists.indices[lists.indptr[i] : lists.indptr[i + 1]].tolist() for i in range(lists.rows)]


def without_values(rows: Rows) -> list[list[int]]:
    return [[column for column, _ in row] for row in rows]


@given(rows=ROWS)
def test_rows_and_the_row_of_each_element(rows: Rows) -> None:
    csr = csr_of(rows)
    assert rows_of(csr) == rows
    assert csr.row_numbers().tolist() == [i for i, row in enumerate(rows) for _ in row]


@given(rows=ROWS, cuts=st.tuples(st.integers(0, 7), st.integers(0, 7)))
def test_part_is_a_slice_without_copies(rows: Rows, cuts: tuple[int, int]) -> None:
    begin, end = sorted(min(cut, len(rows)) for cut in cuts)
    csr = csr_of(rows)
    part = csr.part(begin, end)
    assert rows_of(part) == rows[begin:end]
    if part.nnz:
        assert np.shares_memory(part.indices, csr.indices)
        assert np.shares_memory(part.values, csr.values)
    assert indices_of(lists_of(rows).part(begin, end)) == without_values(rows[begin:end])


@pytest.mark.parametrize(("begin", "end"), [(-1, 1), (2, 1), (0, 3)])
def test_part_refuses_rows_that_do_not_exist(begin: int, end: int) -> None:
    with pytest.raises(IndexError, match=f"{begin} to {end} among 2"):
        csr_of([[(1, 1.0)], []]).part(begin, end)


@given(rows=ROWS, seed=st.integers(0, 99))
def test_where_keeps_rows_and_drops_elements(rows: Rows, seed: int) -> None:
    keep = np.random.default_rng(seed).random(sum(map(len, rows))) < 0.5
    kept = iter(keep.tolist())
    expected = [[element for element in row if next(kept)] for row in rows]
    assert rows_of(csr_of(rows).where(keep)) == expected
    assert indices_of(lists_of(rows).where(keep)) == without_values(expected)


@given(parts=st.lists(ROWS, min_size=1, max_size=4))
def test_concatenate_stacks_rows(parts: list[Rows]) -> None:
    expected = [row for rows in parts for row in rows]
    assert rows_of(Csr.concatenate([csr_of(rows) for rows in parts])) == expected
    assert indices_of(Lists.concatenate([lists_of(rows) for rows in parts])) == without_values(expected)


@given(rows=st.lists(st.lists(st.sampled_from([0.0, -0.0, 0.5, -2.0]), min_size=3, max_size=3), max_size=5))
def test_from_dense_keeps_what_is_not_zero(rows: list[list[float]]) -> None:
    matrix = np.array(rows, np.float32).reshape(len(rows), 3)
    assert rows_of(Csr.from_dense(matrix)) == [[(i, v) for i, v in enumerate(row) if v] for row in rows]
