"""Every kernel at every instruction-set level against the slow reference with the same signature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support.kernel_cases import REFERENCE, few, lengths, seeds

from dslide import _core

LEVELS = [name for name in _core.isa_levels() if name != "reference"]


@pytest.fixture(params=LEVELS, scope="module")
def kernels(request):
    return _core.Kernels(request.param)


def floats(rng, *shape, offset=0):
    """Random float32, beginning `offset` floats past an allocation's start so that rows are not aligned."""
    size = int(np.prod(shape))
    raw = rng.standard_normal(size + offset).astype(np.float32)
    return raw[offset:].reshape(shape)


def stats(kernels, z, shift, reference, total):
    """Reference and sum of every row of z, starting from the given ones."""
    references, totals = (np.full(len(z), start, np.float32) for start in (reference, total))
    kernels.softmax_stats(z, shift, references, totals)
    return references, totals


def test_levels_are_ordered_and_one_is_in_use():
    assert _core.isa_levels()[0] == "reference"
    assert _core.isa() in _core.isa_levels()
    with pytest.raises(ValueError, match="v9"):
        _core.Kernels("v9")


def test_levels_are_compiled_for_what_they_are_called():
    lanes = {"reference": 1, "v2": 4, "v3": 8, "v4": 16, "v4bf16": 16, "neon": 4, "baseline": 4}
    for name in _core.isa_levels():
        assert _core.Kernels(name).lanes == lanes[name]


@few
@given(m=st.integers(0, 20), n=lengths, k=st.integers(0, 40), pad=st.integers(0, 5), transposed=st.booleans(),
       accumulate=st.booleans(), seed=seeds)  # fmt: skip
def test_gemm(kernels, m, n, k, pad, transposed, accumulate, seed):
    rng = np.random.default_rng(seed)
    a = floats(rng, k, m, offset=1) if transposed else floats(rng, m, k, offset=1)
    b, c = floats(rng, k, n + pad, offset=3), floats(rng, m, n + pad, offset=1)
    expected, got = c.copy(), c.copy()
    REFERENCE.gemm(a, transposed, b, expected, n, accumulate)
    kernels.gemm(a, transposed, b, got, n, accumulate)
    assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(got[:, n:], c[:, n:])  # columns past n are not written


def test_reference_gemm_is_a_matrix_product():
    rng = np.random.default_rng(0)
    a, b = floats(rng, 5, 7), floats(rng, 7, 3)
    c = np.zeros((5, 3), np.float32)
    REFERENCE.gemm(a, False, b, c, 3, False)
    assert_allclose(c, a.astype(float) @ b.astype(float), rtol=1e-6)


@few
@given(n=lengths, seed=seeds)
def test_dot_and_axpy(kernels, n, seed):
    rng = np.random.default_rng(seed)
    a, b = floats(rng, n, offset=1), floats(rng, n, offset=2)
    assert_allclose(kernels.dot(a, b), REFERENCE.dot(a, b), rtol=1e-5, atol=1e-5)
    expected, got = b.copy(), b.copy()
    REFERENCE.axpy(0.3, a, expected)
    kernels.axpy(0.3, a, got)
    assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@few
@given(n=lengths, count=st.integers(0, 12), later=st.integers(0, 200), pad=st.integers(0, 9), seed=seeds)
def test_weighted_sum(kernels, n, count, later, pad, seed):
    rng = np.random.default_rng(seed)
    base, out = floats(rng, 9, n + pad, offset=1), floats(rng, n, offset=1)
    ids, values = rng.integers(0, 9, count + later).astype(np.int32), floats(rng, count)
    expected, got = out.copy(), out.copy()
    REFERENCE.weighted_sum(expected, ids, values, base)
    kernels.weighted_sum(got, ids, values, base)
    assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert_allclose(expected, out + values @ base[ids[:count]][:, :n], rtol=1e-5, atol=1e-5)


@few
@given(count=st.integers(0, 24), more=st.integers(0, 3), fours=st.integers(0, 9), pad=st.integers(0, 5), seed=seeds)
def test_pack(kernels, count, more, fours, pad, seed):
    rng = np.random.default_rng(seed)
    width = -(-count // 4) * 4 + 4 * more
    rows, out = floats(rng, count, 4 * fours, offset=1), floats(rng, 4 * fours, width + pad, offset=3)
    expected, got = out.copy(), out.copy()
    REFERENCE.pack(rows, expected, width)
    kernels.pack(rows, got, width)
    assert_array_equal(got, expected)
    assert_array_equal(expected[:, :count], rows.T)
    assert not expected[:, count:width].any()
    assert_array_equal(expected[:, width:], out[:, width:])  # columns past the width are not written


@few
@given(groups=st.integers(0, 40), seed=seeds)
def test_signed_sums(kernels, groups, seed):
    """The same to the bit, as below."""
    x = floats(np.random.default_rng(seed), groups, 4, 8, offset=1)
    expected, got = np.empty((2, groups, 16, 8), np.float32)
    REFERENCE.signed_sums(x, expected)
    kernels.signed_sums(x, got)
    assert_array_equal(got, expected)
    signs = np.where(np.arange(16)[:, None] >> np.arange(4) & 1, 1, -1)
    assert_allclose(expected, np.einsum("ci,gir->gcr", signs, x), rtol=1e-5, atol=1e-5)


@few
@given(count=st.integers(0, 64), seed=seeds)
def test_positive_bits(kernels, count, seed):
    rng = np.random.default_rng(seed)
    tiles = np.round(floats(rng, count, 8, offset=1))  # many are 0, or -0
    expected, got = np.full((2, 8), 77, np.uint64)
    REFERENCE.positive_bits(tiles, expected)
    kernels.positive_bits(tiles, got)
    assert_array_equal(got, expected)
    assert [int(word) for word in got] == [sum(1 << j for j in range(count) if tiles[j, row] > 0) for row in range(8)]


@few
@given(tables=st.integers(0, 40), seed=seeds)
def test_add_choices(kernels, tables, seed):
    """Sums of floats are the same to the bit: the order of additions is part of what a hash code is."""
    rng = np.random.default_rng(seed)
    tiles, sums = floats(rng, tables, 16, 8), floats(rng, 8, 8, offset=1)
    chosen = rng.integers(0, 16, (tables, 8))
    expected, got = sums.copy(), sums.copy()
    for level, out in ((REFERENCE, expected), (kernels, got)):
        level.add_choices(tiles, (4 * chosen).astype(np.uint8), out)
    assert_array_equal(got, expected)
    assert_allclose(expected, sums + tiles[np.arange(tables)[:, None], chosen].sum(0), rtol=1e-5, atol=1e-5)


@few
@given(rows=st.integers(0, 70), n=lengths, scale=st.sampled_from([1.0, 20.0, 200.0]), seed=seeds)
def test_softmax(kernels, rows, n, scale, seed):
    rng = np.random.default_rng(seed)
    z, shift = scale * floats(rng, rows, n, offset=1), floats(rng, n)
    for row in z:
        assert kernels.shifted_max(row, shift) == REFERENCE.shifted_max(row, shift)
    for start in [(-np.inf, 0.0), (1.5, 2.0)]:
        (reference, total), (maximum, expected) = (stats(k, z, shift, *start) for k in (kernels, REFERENCE))
        assert np.all(reference <= maximum)
        assert np.all(reference >= (maximum - 60 if n else start[0]))  # never so far below that a sum could overflow
        if not n:
            assert np.all(total == start[1])
            continue
        assert_array_equal((z + shift).max(1, initial=start[0]), maximum)
        logs = reference.astype(float) + np.log(total.astype(float))
        assert_allclose(logs, maximum + np.log(expected.astype(float)), rtol=1e-6, atol=1e-5 + 1e-6 * scale)
    norm = (z + shift).max(axis=1) + 1 if n else np.zeros(rows, np.float32)
    expected, got = z.copy(), z.copy()
    REFERENCE.softmax_gradient(z, shift, norm, 0.25, expected)
    kernels.softmax_gradient(got, shift, norm, 0.25, got)  # in place
    # the sum z + shift itself is rounded to float, to half a unit in the last place of numbers up to 4 * scale
    assert_allclose(got, expected, rtol=1e-5 + 1e-6 * scale, atol=1e-35)


@pytest.mark.parametrize("level", _core.isa_levels())
@pytest.mark.parametrize("scale", [1, 50, 1000])
@pytest.mark.parametrize("order", [1, -1])
def test_softmax_stats_in_pieces_equal_the_whole(level, scale, order):
    """However far values rise or fall from piece to piece."""
    z = scale * np.sort(floats(np.random.default_rng(1), 100))[::order]
    shift, reference, total = np.zeros(100, np.float32), np.float32([-np.inf]), np.float32([0])
    for piece in np.split(np.arange(100), [3, 40, 41]):
        _core.Kernels(level).softmax_stats(z[None, piece], shift[piece], reference, total)
    assert_allclose(reference + np.log(total), np.logaddexp.reduce(z.astype(float)), rtol=1e-6)


@few
@given(rows=st.integers(0, 70), n=lengths, pad=st.integers(0, 5), scale=st.sampled_from([1.0, 30.0, 200.0]),
       start=st.sampled_from([(-np.inf, 0.0), (1.5, 2.0)]), seed=seeds)  # fmt: skip
def test_exponentials(kernels, rows, n, pad, scale, start, seed):
    rng = np.random.default_rng(seed)
    z, shift = scale * floats(rng, rows, n + pad, offset=1), floats(rng, rows)
    found = []
    for level in (REFERENCE, kernels):
        e, reference, total = z.copy(), np.full(n, start[0], np.float32), np.full(n, start[1], np.float32)
        raised = level.exponentials(e, shift, reference, total)
        assert raised == bool(np.any(reference != np.float32(start[0])))
        found.append((e, reference, total))
    (expected, references, totals), (e, reference, total) = found
    assert_array_equal(reference, references)  # the same rule for both
    assert_array_equal(e[:, n:], z[:, n:])
    if rows:
        top = (z + shift[:, None])[:, :n].max(axis=0, initial=start[0])
        assert np.all(top <= reference + 60)
        assert np.all((reference == top) | (reference == np.float32(start[0])))
    # the sum z + shift itself is rounded to float; what is below the smallest normal float is as good as 0
    assert_allclose(e[:, :n], expected[:, :n], rtol=1e-5 + 1e-6 * scale, atol=1e-35)
    assert_allclose(total, totals, rtol=1e-5 + 1e-6 * scale, atol=1e-35)


@few
@given(rows=st.integers(0, 70), n=lengths, pad=st.integers(0, 5), seed=seeds)
def test_column_sums(kernels, rows, n, pad, seed):
    rng = np.random.default_rng(seed)
    z, sums = floats(rng, rows, n + pad, offset=1), floats(rng, n, offset=3)
    expected, got = sums.copy(), sums.copy()
    REFERENCE.column_sums(z, expected)
    kernels.column_sums(z, got)
    assert_allclose(expected, sums + z[:, :n].sum(0, dtype=float), rtol=1e-5, atol=1e-5)
    assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@few
@given(n=lengths, scale=st.sampled_from([1.0, 30.0]), seed=seeds)
def test_sigmoid(kernels, n, scale, seed):
    rng = np.random.default_rng(seed)
    z, shift, weight = scale * floats(rng, n, offset=1), floats(rng, n), np.abs(floats(rng, n))
    expected, got = z.copy(), z.copy()
    expected_loss = REFERENCE.sigmoid_gradient(expected, shift, weight, 0.5)
    loss = kernels.sigmoid_gradient(got, shift, weight, 0.5)
    assert_allclose(loss, expected_loss, rtol=1e-5, atol=1e-6)
    assert_allclose(got, expected, rtol=2e-5, atol=1e-30)


@few
@given(n=lengths, steps=st.integers(1, 3), seed=seeds)
def test_optimizers(kernels, n, steps, seed):
    rng = np.random.default_rng(seed)
    start = [floats(rng, n, offset=1), floats(rng, n), np.abs(floats(rng, n))]
    adam = {"rate": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "correct1": 2.0, "correct2": 3.0, "keep": 0.99}
    runs = []
    for level in (REFERENCE, kernels):
        r = np.random.default_rng(seed + 1)
        w, m, v = (x.copy() for x in start)
        w2, v2, w3 = start[0].copy(), start[2].copy(), start[0].copy()
        for _ in range(steps):
            g = floats(r, n)
            level.adam(w, m, v, g, **adam)
            level.adagrad(w2, v2, g, 0.01, 1e-8, 0.99)
            level.sgd(w3, g, 0.01, 0.99)
        runs.append([w, m, v, w2, v2, w3])
    for got, expected in zip(runs[1], runs[0], strict=True):
        assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


@few
@given(n=st.integers(1, 200), data=st.data())
def test_nan_is_not_hidden(kernels, n, data):
    """NaN in gives NaN out, so that divergence is detected."""
    z, zeros, ones = (np.full(n, value, np.float32) for value in (0.5, 0, 1))
    at = data.draw(st.integers(0, n - 1))
    z[at] = np.nan
    for level in (kernels, REFERENCE):
        assert np.isnan(stats(level, z[None], zeros, -np.inf, 0.0)[1])
        softmax, sigmoid = z.copy(), z.copy()
        level.softmax_gradient(z[None], zeros, np.ones(1, np.float32), 1.0, softmax[None])
        loss = level.sigmoid_gradient(sigmoid, zeros, ones, 1.0)
        assert np.isnan(loss)
        for gradient in (softmax, sigmoid):
            assert np.flatnonzero(np.isnan(gradient)).tolist() == [at]
