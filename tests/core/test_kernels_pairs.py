"""Kernels on pairs of bf16 at every instruction-set level: against the slow reference, and that against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support.bf16 import nearest
from support.kernel_cases import few, lengths, seeds

from dslide import _core
from dslide.model.storage import widened


@pytest.fixture(params=_core.isa_levels(), scope="module")
def kernels(request):
    return _core.Kernels(request.param)


def halves(rng, rows, columns):
    """Random bf16: as floats, (rows, columns)."""
    return widened(nearest(rng.standard_normal((rows, columns))))


def pairs_of_columns(x):
    """Neighbours in a row as pairs: (rows, half of the columns, rounded up)."""
    wide = np.concatenate([x, np.zeros((len(x), x.shape[1] % 2), np.float32)], axis=1)
    bits = nearest(wide).astype(np.uint32)
    return np.ascontiguousarray(bits[:, ::2] | bits[:, 1::2] << 16)


def pairs_of_rows(x):
    return np.ascontiguousarray(pairs_of_columns(np.ascontiguousarray(x.T)).T)


@few
@given(m=st.integers(0, 20), n=lengths, k=st.integers(0, 80), pad=st.integers(0, 5), transposed=st.booleans(),
       accumulate=st.booleans(), seed=seeds)  # fmt: skip
def test_product(kernels, m, n, k, pad, transposed, accumulate, seed):
    rng = np.random.default_rng(seed)
    a, b = halves(rng, m, k), halves(rng, k, n + pad)
    c = rng.standard_normal((m, n + pad)).astype(np.float32)
    left = pairs_of_columns(a)
    got = c.copy()
    kernels.gemm_pairs(
        np.ascontiguousarray(left.T) if transposed else left, transposed, pairs_of_rows(b), got, n, accumulate
    )
    expected = a.astype(float) @ b.astype(float) + (c if accumulate else 0)
    assert_allclose(got[:, :n], expected[:, :n], rtol=1e-5, atol=1e-5 * (1 + k))
    assert_array_equal(got[:, n:], c[:, n:])  # not written


@few
@given(n=lengths, seed=seeds)
def test_dot(kernels, n, seed):
    a, b = halves(np.random.default_rng(seed), 2, n)
    got = kernels.dot_pairs(pairs_of_columns(a[None])[0], pairs_of_columns(b[None])[0])
    assert_allclose(got, a.astype(float) @ b, rtol=1e-5, atol=1e-5 * (1 + n))


@few
@given(n=lengths, size=st.sampled_from([1e-30, 1.0, 1e30]), seed=seeds)
def test_rounding(kernels, n, size, seed):
    """To the nearest, ties to even."""
    low, high = (size * np.random.default_rng(seed).standard_normal((2, n))).astype(np.float32)
    low[::3] = (low[::3].view(np.uint32) & 0xFFFF0000 | 0x8000).view(np.float32)  # between two
    up, beside = np.zeros(n, np.uint32), np.zeros((n + 1) // 2, np.uint32)
    kernels.pair_up(low, high, up)
    kernels.pair_neighbours(low, beside)
    assert_array_equal(up, nearest(low) | nearest(high).astype(np.uint32) << 16)
    assert_array_equal(beside, pairs_of_columns(low[None])[0])


def test_infinities_and_nan_are_kept(kernels):
    x = np.tile(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3.4e38], np.float32), 12)
    up, beside = np.zeros(len(x), np.uint32), np.zeros(len(x) // 2, np.uint32)
    kernels.pair_up(x, x, up)
    kernels.pair_neighbours(x, beside)
    for found in (widened(up.astype(np.uint16)), widened(beside.view(np.uint16))):
        assert_array_equal(found, np.where(x == np.float32(3.4e38), np.inf, x))
