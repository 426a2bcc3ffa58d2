"""Every family of hash functions against its slow reference: the same codes, dense or sparse."""

from __future__ import annotations

import numpy as np
import pytest
import reference.hashing as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dslide import _core

FAMILIES = list(reference.FAMILIES)
DIMENSIONS = [1, 2, 7, 8, 9, 17, 64, 128, 131, 260]


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def vectors(count: int, dimension: int, zeros: float, levels: int, seed: int) -> np.ndarray:
    """Rows with some exact zeros; few levels make many equal values, and sums that are exactly 0."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, dimension)).astype(np.float32)
    if levels:
        x = np.round(x * levels) / np.float32(levels)
    x[rng.random(x.shape) < zeros] = 0
    return x


def expected(family: str, x: np.ndarray, *parameters: int) -> np.ndarray:
    return np.array([reference.FAMILIES[family](row, *parameters) for row in x]).reshape(len(x), parameters[1])


def hash_sparse(functions: _core.HashFunctions, x: np.ndarray) -> np.ndarray:
    csr = sparse.csr_matrix(x)
    return functions.sparse(csr.indptr.astype(np.int64), csr.indices.astype(np.int32), csr.data)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(
    dimension=st.sampled_from(DIMENSIONS),
    k=st.integers(1, 6),
    tables=st.integers(1, 5),
    table_bits=st.integers(1, 20),
    seed=st.integers(0, 2**64 - 1),
    count=st.integers(0, 11),
    padding=st.integers(0, 5),
    zeros=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    levels=st.sampled_from([0, 2]),
    threads=st.sampled_from([1, 2, 5]),
)
def test_codes_are_those_of_the_reference(
    family, dimension, k, tables, table_bits, seed, count, padding, zeros, levels, threads
):
    _core.set_threads(threads)
    x = vectors(count, dimension + padding, zeros, levels, seed % 1000)[:, :dimension]
    functions = _core.HashFunctions(family, dimension, k, tables, table_bits, seed)
    codes = functions.dense(x)
    assert codes.dtype == np.uint32
    assert codes.shape == (count, tables)
    np.testing.assert_array_equal(codes, expected(family, x, k, tables, table_bits, seed))
    np.testing.assert_array_equal(codes, hash_sparse(functions, x))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("k", "table_bits"), [(64, 24), (33, 24), (22, 9)])
def test_codes_that_fill_several_words_are_those_of_the_reference(family, k, table_bits):
    x = vectors(3, 40, 0.3, 0, 1)
    functions = _core.HashFunctions(family, 40, k, 3, table_bits, 7)
    np.testing.assert_array_equal(functions.dense(x), expected(family, x, k, 3, table_bits, 7))


@pytest.mark.parametrize("family", FAMILIES)
def test_many_rows_are_hashed_as_single_ones_on_any_number_of_threads(family):
    # More rows, projections and coordinates than any block of the kernels holds.
    x = vectors(700, 300, 0.5, 0, 2)
    functions = _core.HashFunctions(family, 300, 9, 10, 16, 3)
    alone = np.concatenate([functions.dense(x[i : i + 1]) for i in range(len(x))])
    for threads in 1, 2, 5:
        _core.set_threads(threads)
        np.testing.assert_array_equal(functions.dense(x), alone)
        np.testing.assert_array_equal(hash_sparse(functions, x), alone)


@pytest.mark.parametrize("family", FAMILIES)
def test_chosen_rows_are_hashed_in_the_given_order(family):
    x = vectors(20, 30, 0.3, 0, 4)
    functions = _core.HashFunctions(family, 30, 4, 6, 12, 5)
    rows = np.array([3, 19, 0, 3], dtype=np.int32)
    np.testing.assert_array_equal(functions.dense(x, rows), functions.dense(x)[rows])


@pytest.mark.parametrize("family", FAMILIES)
def test_zeros_stored_in_sparse_rows_change_nothing(family):
    x = vectors(5, 50, 0.6, 0, 6)
    functions = _core.HashFunctions(family, 50, 3, 4, 12, 5)
    indptr = np.arange(0, 251, 50, dtype=np.int64)
    everything = functions.sparse(indptr, np.tile(np.arange(50, dtype=np.int32), 5), x.ravel())
    np.testing.assert_array_equal(everything, hash_sparse(functions, x))


@pytest.mark.parametrize("family", ["dwta", "minhash"])
def test_a_vector_of_zeros_gets_codes_of_zero(family):
    functions = _core.HashFunctions(family, 16, 1, 5, 3, 9)
    codes = functions.dense(np.zeros((1, 16), dtype=np.float32))
    assert len(set(codes[0])) == 1
    if family == "dwta":
        assert codes[0, 0] == 0  # three bits fit, so the bucket number is the code


@pytest.mark.parametrize("family", FAMILIES)
def test_sparse_rows_of_a_huge_dimension(family):
    rng = np.random.default_rng(8)
    dimension, count, nonzeros = 1_000_000, 40, 60
    columns = np.sort(rng.integers(0, dimension, (count, nonzeros)), axis=1)
    assert (np.diff(columns, axis=1) > 0).all()
    values = rng.random((count, nonzeros), dtype=np.float32) + 0.1
    functions = _core.HashFunctions(family, dimension, 4, 8, 20, 1)
    indptr = np.arange(0, count * nonzeros + 1, nonzeros, dtype=np.int64)
    codes = functions.sparse(indptr, columns.astype(np.int32).ravel(), values.ravel())
    row = np.zeros((1, dimension), dtype=np.float32)
    row[0, columns[7]] = values[7]
    np.testing.assert_array_equal(codes[7:8], functions.dense(row))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_seed_decides_the_functions(family):
    x = vectors(50, 64, 0.2, 0, 10)
    first, again, other = (_core.HashFunctions(family, 64, 4, 8, 12, seed).dense(x) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.5


def test_bad_parameters_are_refused_with_their_name():
    good = {"family": "simhash", "dimension": 8, "k": 2, "tables": 3, "table_bits": 4, "seed": 0}
    for name, value, message in [
        ("family", "md5", "family must be simhash, wta, dwta or minhash, not md5"),
        ("dimension", 0, "dimension must be 1 to 2147483647, not 0"),
        ("k", 65, "k must be 1 to 64, not 65"),
        ("tables", 0, "tables must be 1 to 1024, not 0"),
        ("table_bits", 25, "table_bits must be 1 to 24, not 25"),
    ]:
        with pytest.raises(ValueError, match=f"^{message}$"):
            _core.HashFunctions(**{**good, name: value})


def test_bad_rows_are_refused():
    functions = _core.HashFunctions("simhash", 4, 2, 3, 4, 0)
    x = np.zeros((6, 4), dtype=np.float32)
    with pytest.raises(ValueError, match="the number of columns must be 4, not 5"):
        functions.dense(np.zeros((2, 5), dtype=np.float32))
    with pytest.raises(ValueError, match="rows must be contiguous"):
        functions.dense(np.zeros((4, 8), dtype=np.float32)[:, ::2])
    with pytest.raises(ValueError, match="row numbers must be below 6, not 6"):
        functions.dense(x, np.array([6], dtype=np.int32))
    values = np.ones(2, dtype=np.float32)
    for columns in [0, 4], [-1, 2], [2, 2], [3, 1]:
        with pytest.raises(ValueError, match="row 1: column numbers must ascend and be below 4"):
            functions.sparse(np.array([0, 0, 2]), np.array(columns, dtype=np.int32), values)
    for indptr in [0, 3], [2, 0], [-1, 2]:
        with pytest.raises(ValueError, match="indptr must not descend"):
            functions.sparse(np.array(indptr), np.array([0, 1], dtype=np.int32), values)
