"""Regressions of items against the slow version in reference/regressions.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import reference.regressions as slow
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide import _core


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = _core.threads()
    yield
    _core.set_threads(before)


def some_users(users: int, items: int, seed: int) -> np.ndarray:
    """Rows of ones and zeros; the last user has nothing, and nobody the last item."""
    found = (np.random.default_rng(seed).random((users, items)) < 0.4).astype(np.float64)
    found[-1], found[:, -1] = 0, 0
    return found


def regress(users: np.ndarray, cost: float, most: int, numbers: Any = None, **options: Any) -> Any:
    matrix, items = sp.csr_matrix(users), users.shape[1]
    numbers = np.arange(items) if numbers is None else np.asarray(numbers)
    return _core.regress_items(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), items, numbers.astype(np.int32), cost, most,
        **options,
    )  # fmt: skip


def dense(found: Any, items: int) -> np.ndarray:
    begin, feature, weight, bias = found
    assert not bias.any()
    assert len(bias) == len(begin) - 1
    return sp.csr_matrix((weight, feature, begin), (len(begin) - 1, items)).toarray()


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40), st.integers(2, 12), st.sampled_from([0.05, 1.0, 20.0]), st.integers(0, 99))
def test_weights_are_those_of_the_least_error(users: int, items: int, cost: float, seed: int) -> None:
    data = some_users(users, items, seed)
    expected = [slow.regress(data, item, cost, items) for item in range(items)]
    np.testing.assert_allclose(dense(regress(data, cost, items), items), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("most", [0, 1, 5])
def test_items_that_reduce_the_error_most_have_weights(most: int) -> None:
    data = some_users(300, 30, 1)
    expected = np.array([slow.regress(data, item, 0.05, most) for item in range(30)])
    assert np.count_nonzero(expected[0]) == most
    np.testing.assert_allclose(dense(regress(data, 0.05, most), 30), expected, rtol=1e-3, atol=1e-5)


def test_some_items_have_the_weights_that_they_have_among_all() -> None:
    data = some_users(200, 25, 2)
    every, some = dense(regress(data, 0.05, 9), 25), dense(regress(data, 0.05, 9, [3, 24, 7]), 25)
    np.testing.assert_array_equal(some, every[[3, 24, 7]])


def test_a_sample_of_the_users_gives_about_the_same() -> None:
    data = some_users(20000, 6, 3)
    every, sampled = regress(data, 0.05, 6), regress(data, 0.05, 6, entries=12000)
    assert not np.array_equal(every[2], sampled[2])
    np.testing.assert_allclose(dense(sampled, 6), dense(every, 6), atol=0.05)


def test_threads_give_the_same_bits() -> None:
    data, found = some_users(200, 90, 4), []
    for threads in (1, 3):
        _core.set_threads(threads)
        found.append(regress(data, 0.05, 20, entries=1000))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_does_not_fit_is_refused() -> None:
    data = some_users(9, 4, 0)
    with pytest.raises(ValueError, match="an item is out of range"):
        regress(data, 1.0, 3, [4])
    with pytest.raises(ValueError, match="expected a cost and some entries"):
        regress(data, 0.0, 3)
    with pytest.raises(ValueError, match="expected a cost and some entries"):
        regress(data, 1.0, 3, entries=0)
