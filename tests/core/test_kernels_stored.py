"""Kernels on rows that are stored as bf16, at every instruction-set level: against the slow reference, and the
properties of stochastic rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support.bf16 import SMALLEST, STORED, UNIT, nearest, stored
from support.kernel_cases import REFERENCE, few, lengths, seeds

from dslide import _core
from dslide.model.storage import widened

ADAM = {"rate": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "correct1": 2.0, "correct2": 3.0, "keep": 0.99}
COLUMN_SEED = 0x9E37


@pytest.fixture(params=_core.isa_levels(), scope="module")
def kernels(request):
    return _core.Kernels(request.param)


def rounded(kernels, x, seed):
    """Floats as the kernels store them: a step from zeros along -x, which is exact."""
    w = np.zeros(len(x), np.uint16)
    kernels.sgd(w, -np.asarray(x, np.float32), 1.0, 1.0, seed)
    return w


# ---- against the reference ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moments", STORED)
@pytest.mark.parametrize("weights", STORED)
@few
@given(n=lengths, seed=seeds)
def test_optimizers(kernels, weights, moments, n, seed):
    """Numbers before rounding are equal to about 1e-5, so that one in some hundred may be rounded the other way."""
    rng = np.random.default_rng(seed)
    w0, m0, g = (rng.standard_normal(n + 1).astype(np.float32)[1:] for _ in range(3))
    v0 = np.abs(rng.standard_normal(n))
    runs = []
    for level in (REFERENCE, kernels):
        w, w2, w3 = (stored(w0, weights) for _ in range(3))
        m, v, v2 = (stored(x, moments) for x in (m0, v0, v0))
        level.adam(w, m, v, g, **ADAM, seed=seed)
        level.adagrad(w2, v2, g, 0.01, 1e-8, 0.99, seed=seed)
        level.sgd(w3, g, 0.01, 0.99, seed=seed)
        runs.append([w, m, v, w2, v2, w3])
    for got, expected in zip(runs[1], runs[0], strict=True):
        assert got.dtype == expected.dtype
        unit = UNIT if got.dtype == np.uint16 else 2e-5
        assert_allclose(widened(got), widened(expected), rtol=unit, atol=1e-6)
        if got.dtype == np.uint16:
            assert np.count_nonzero(got != expected) <= 2 + 0.02 * n


@few
@given(n=lengths, count=st.integers(0, 12), later=st.integers(0, 200), pad=st.integers(0, 9), seed=seeds)
def test_weighted_sum(kernels, n, count, later, pad, seed):
    rng = np.random.default_rng(seed)
    base, out = nearest(rng.standard_normal((9, n + pad))), rng.standard_normal(n).astype(np.float32)
    ids, values = rng.integers(0, 9, count + later).astype(np.int32), rng.standard_normal(count).astype(np.float32)
    got = out.copy()
    kernels.weighted_sum(got, ids, values, base)
    assert_allclose(got, out + values @ widened(base)[ids[:count]][:, :n], rtol=1e-5, atol=1e-5)


@few
@given(n=lengths, seed=seeds)
def test_widening(kernels, n, seed):
    numbers = np.random.default_rng(seed).integers(0, 1 << 16, n, np.uint16)
    got = np.empty(n, np.float32)
    kernels.widen(numbers, got)
    assert_array_equal(got.view(np.uint32), numbers.astype(np.uint32) << 16)


@few
@given(n=lengths, seed=seeds, data=st.data())
def test_rounding_is_the_same_to_the_bit_at_every_level(kernels, n, seed, data):
    bits = np.random.default_rng(seed).integers(0, 1 << 32, n, np.uint32)
    x = np.where(np.isfinite(bits.view(np.float32)), bits.view(np.float32), np.float32(1))
    x = np.where(np.abs(x) < 1e-37, 0, x)  # denormals may be flushed to 0
    got = rounded(kernels, x, seed)
    assert_array_equal(got, rounded(REFERENCE, x, seed))
    if n:  # a column's random bits don't depend on where a row is cut
        first = data.draw(st.integers(0, n - 1))
        assert_array_equal(rounded(kernels, x[first:], (seed + first * COLUMN_SEED) % 2**32), got[first:])


# ---- properties of stochastic rounding ------------------------------------------------------------------------------


def test_rounding_is_to_a_neighbour_and_unbiased(kernels):
    """Each of 64 numbers with 4,096 random seeds: the mean is within 5 standard deviations of the number."""
    rng = np.random.default_rng(5)
    x = (rng.standard_normal(64) * 10.0 ** rng.integers(-20, 20, 64)).astype(np.float32)
    samples = 4096
    many = np.stack([widened(rounded(kernels, x, int(s))) for s in rng.integers(0, 1 << 32, samples)]).astype(float)
    below = widened((x.view(np.uint32) >> 16).astype(np.uint16)).astype(float)
    above = widened((x.view(np.uint32) >> 16).astype(np.uint16) + np.uint16(1)).astype(float)
    assert ((many == below) | (many == above)).all()
    chance = (x - below) / (above - below)
    deviation = np.abs(above - below) * np.sqrt(chance * (1 - chance) / samples)
    assert (np.abs(many.mean(axis=0) - x) <= 5 * deviation + 1e-3 * np.abs(above - below)).all()


def test_bf16_values_are_kept(kernels):
    every = np.arange(1 << 16, dtype=np.uint16)
    numbers = every[np.isfinite(widened(every)) & ((np.abs(widened(every)) > 1e-37) | (widened(every) == 0))]
    for seed in (0, 0xFFFF, 0x12345678):
        got = rounded(kernels, widened(numbers), seed)
        assert_array_equal(widened(got), widened(numbers))  # -0 may become 0


@pytest.mark.parametrize("seed", [0, 1, 0x7FFF, 0xFFFF])
def test_the_ends_of_the_range(kernels, seed):
    largest = np.finfo(np.float32).max
    x = np.tile(np.float32([largest, -largest, np.inf, -np.inf, np.nan, 0.0, 1e-45, -1e-40]), 8)
    got = widened(rounded(kernels, x, seed)).reshape(8, 8)
    most = widened(np.uint16([0x7F7F]))[0]
    assert (got[:, :2] == [most, -most]).all()  # finite
    assert (got[:, 2:4] == [np.inf, -np.inf]).all()
    assert np.isnan(got[:, 4]).all()
    assert (got[:, 5] == 0).all()
    assert (np.abs(got[:, 6:]) <= 1e-40 + SMALLEST).all()


def test_steps_far_below_the_last_place_count(kernels):
    """10,000 steps of 1e-4 of their size move weights by a factor of e on average, as float32 would; rounding to the
    nearest would leave them where they are."""
    w = nearest(np.full(256, 0.75))
    start = widened(w).mean()
    rng = np.random.default_rng(0)
    for _ in range(10_000):
        kernels.sgd(w, -widened(w), 1e-4, 1.0, int(rng.integers(1 << 32)))
    assert widened(w).mean() / start == pytest.approx((1 + 1e-4) ** 10_000, rel=0.03)
    unmoved = nearest(widened(nearest(np.float32([0.75]))) * np.float32(1 + 1e-4))
    assert widened(unmoved) == 0.75


def test_the_mean_of_squares_settles_where_it_should(kernels):
    """Adam's second moment with beta2 = 0.999: increments of a thousandth, an eighth of a bf16's last place."""
    v, m, w = np.zeros(256, np.uint16), np.zeros(256, np.uint16), np.zeros(256, np.float32)
    rng, g = np.random.default_rng(0), np.full(256, 0.5, np.float32)
    for _ in range(8000):
        kernels.adam(w, m, v, g, **ADAM | {"beta2": 0.999}, seed=int(rng.integers(1 << 32)))
    assert widened(v).mean() == pytest.approx(0.25, rel=0.01)
    assert widened(m).mean() == pytest.approx(0.5, rel=0.01)


def test_moments_stored_differently_are_refused(kernels):
    x = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="moments must be stored alike"):
        kernels.adam(x, x.copy(), np.zeros(4, np.uint16), x, **ADAM)
    with pytest.raises(ValueError, match="float32, or of uint16"):
        kernels.sgd(np.zeros(4, np.int32), x, 0.1, 1.0)
