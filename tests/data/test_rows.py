"""Sparse rows: from and to scipy, gathering, parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide import _core
from dslide.data import Dataset, SparseRows
from dslide.errors import DataError


@pytest.fixture(autouse=True, scope="module")
def _same_threads_after() -> Iterator[None]:
    before = _core.threads()
    yield
    _core.set_threads(before)


def random_matrix(rows: int, columns: int, seed: int, density: float = 0.3) -> sp.csr_matrix:
    return sp.random(rows, columns, density, "csr", np.float32, np.random.default_rng(seed))


def slow_take(rows: SparseRows, ids: list[int]) -> tuple[list[int], list[int], list[float]]:
    ends, indices, values = [0], [], []
    for i in ids:
        indices += rows.indices[rows.indptr[i] : rows.indptr[i + 1]].tolist()
        values += rows.values[rows.indptr[i] : rows.indptr[i + 1]].tolist()
        ends.append(len(indices))
    return ends, indices, values


@given(
    rows=st.integers(0, 8), columns=st.integers(1, 9), seed=st.integers(0, 99),
    picks=st.lists(st.integers(0, 7), max_size=20), threads=st.sampled_from([1, 2, 5]),
)  # fmt: skip
@settings(deadline=None)
def test_take_equals_slow_take(rows: int, columns: int, seed: int, picks: list[int], threads: int) -> None:
    matrix = SparseRows.from_scipy(random_matrix(rows, columns, seed))
    ids = [i % rows for i in picks] if rows else []
    _core.set_threads(threads)
    taken = matrix.take(ids)
    assert (taken.indptr.tolist(), taken.indices.tolist(), taken.values.tolist()) == slow_take(matrix, ids)
    assert taken.columns == columns


@pytest.mark.parametrize("threads", [1, 3])
def test_take_of_many_rows_in_parallel(threads: int) -> None:
    matrix = random_matrix(3000, 200, 1)
    _core.set_threads(threads)
    ids = np.random.default_rng(2).integers(0, 3000, 5000)
    taken = SparseRows.from_scipy(matrix).take(ids)
    assert taken.nnz > 1 << 15
    assert (taken.to_scipy() != matrix[ids]).nnz == 0


def test_take_refuses_rows_out_of_range() -> None:
    rows = SparseRows.from_scipy(np.eye(3))
    for bad in ([3], [-1], [0, 2**40]):
        with pytest.raises(IndexError, match=f"no row {bad[-1]} among 3"):
            rows.take(bad)
    with pytest.raises(IndexError, match="whole numbers"):
        rows.take([0.5])


def test_take_refuses_damaged_rows() -> None:
    good = SparseRows.from_scipy(np.eye(3))
    for indptr in ([0, 9, 2, 3], [0, 2, 1, 3], [0, -5, 2, 3]):
        with pytest.raises(DataError, match="damaged bounds"):
            SparseRows(np.array(indptr, np.int64), good.indices, good.values, 3).take([0, 1])
    for index in (3, -1):
        rows = SparseRows(good.indptr, np.array([0, index, 1], np.int32), good.values, 3)
        rows.take([0, 2])
        with pytest.raises(DataError, match="row 1 has an index"):
            rows.take([0, 1])


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("array", [False, True])
def test_every_scipy_kind(kind: str, array: bool) -> None:
    matrix = random_matrix(6, 8, 3)
    given_matrix = (sp.csr_array(matrix) if array else matrix).asformat(kind)
    rows = SparseRows.from_scipy(given_matrix)
    assert (rows.to_scipy() != matrix).nnz == 0
    assert np.array_equal(SparseRows.from_scipy(matrix.toarray()).indices, matrix.indices)


def test_from_scipy_sorts_a_copy() -> None:
    matrix = sp.csr_matrix((np.array([1.0, 2, 4, 0]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), (2, 3))
    rows = SparseRows.from_scipy(matrix)
    assert rows.indices.tolist() == [0, 2, 1]
    assert rows.values.tolist() == [2, 5, 0]  # the stored zero is kept
    assert matrix.indices.tolist() == [2, 0, 2, 1]


def test_from_scipy_shares_memory() -> None:
    matrix = random_matrix(5, 5, 0)
    rows = SparseRows.from_scipy(matrix)
    assert np.shares_memory(rows.indices, matrix.indices)
    assert np.shares_memory(rows.values, matrix.data)


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.array([[0, 1], [0, np.inf]]), "row 1, column 1: .* found inf"),
        (np.array([[1e300]]), "row 0, column 0"),
        (np.arange(3), "two dimensions, not 1"),
        (np.array([["a"]]), "matrix of numbers"),
        (np.array([[1j]]), "matrix of numbers"),
        (sp.csr_matrix((2, 2**31)), "at most 2147483647 columns"),
        (sp.csr_matrix(np.array([[1j]])), "matrix of numbers"),
    ],
)
def test_from_scipy_refuses(matrix: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        SparseRows.from_scipy(matrix)


@pytest.mark.parametrize("position", [0, 1])
def test_from_scipy_refuses_damaged_matrices(position: int) -> None:
    for form in (sp.csr_matrix, sp.csc_matrix):
        matrix = form(np.eye(4))
        if position == 0:
            matrix.indices[2] = 1000
        else:
            matrix.indptr[1] = 4000
        with pytest.raises(DataError, match="damaged"):
            SparseRows.from_scipy(matrix)


def test_parts_share_memory() -> None:
    matrix = random_matrix(20, 7, 4)
    rows = SparseRows.from_scipy(matrix)
    part = rows.part(5, 11)
    assert (part.to_scipy() != matrix[5:11]).nnz == 0
    assert np.shares_memory(part.indices, rows.indices)
    assert np.shares_memory(part.values, rows.values)
    assert len(rows.part(20, 20)) == 0
    with pytest.raises(IndexError, match="5 to 21"):
        rows.part(5, 21)


def test_counts() -> None:
    rows = SparseRows.from_scipy(np.array([[0, 1], [0, 0], [2, 3]]))
    assert (len(rows), rows.nnz, rows.columns, rows.empty_rows()) == (3, 3, 2, 1)


def test_indices_stay_int32_beside_int64_bounds() -> None:
    taken = SparseRows.from_scipy(np.eye(3)).take([1])
    assert (taken.indptr.dtype, taken.indices.dtype, taken.values.dtype) == (np.int64, np.int32, np.float32)
    with pytest.raises(DataError, match=r"indices must be .* int32"):
        SparseRows(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32), 1)


def test_take_from_mapped_files(tmp_path: Path) -> None:
    matrix = random_matrix(10, 10, 5)
    rows = SparseRows.from_scipy(matrix)
    mapped = []
    for name in ("indptr", "indices", "values"):
        getattr(rows, name).tofile(tmp_path / name)
        mapped.append(np.memmap(tmp_path / name, getattr(rows, name).dtype, "r"))
    assert (SparseRows(*mapped, 10).take([3, 3, 9]).to_scipy() != matrix[[3, 3, 9]]).nnz == 0


def test_a_dataset_drops_labels_of_weight_zero() -> None:
    y = sp.csr_matrix((np.array([1.0, 0, 0, 2]), np.array([0, 1, 1, 2]), np.array([0, 2, 3, 4])), (3, 3))
    dataset = Dataset(SparseRows.from_scipy(np.eye(3)), SparseRows.from_scipy(y))
    assert dataset.y.indptr.tolist() == [0, 1, 1, 2]
    assert dataset.y.indices.tolist() == [0, 2]
    assert dataset.y.values.tolist() == [1, 2]
