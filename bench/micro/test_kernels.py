"""Every kernel at every instruction-set level, on one thread: `pytest bench/micro --benchmark-only`.

Lengths are those of training with 128 hidden units, and 64 times as much, as for a block of 64 neurons. A short kernel
takes less time than its call from Python, which length 0 measures. Arrays stay in cache from call to call.
`--benchmark-json FILE` writes GFLOP/s or GB/s too, of median times, as `extra_info`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dslide import _core

pytestmark = pytest.mark.benchmark(max_time=0.2, min_time=1e-4)
LEVELS = _core.isa_levels()
BLOCK = 64  # neurons
FEATURES = 75  # of a row
GEMM_SHAPES = [  # m, n, k; whether A is read transposed; whether C is added to
    (64, 128, 128, False, False),  # logits of a block of neurons and 128 rows
    (128, 128, 64, True, True),  # gradient of hidden units
    (64, 128, 128, False, True),  # gradient of weights
]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, np.float32)


def adam(kernels: Any, n: int) -> Callable[[], None]:
    w, m, v, g = (floats(n) for _ in range(4))
    return lambda: kernels.adam(w, m, v, g, 1e-3, 0.9, 0.999, 1e-8, 1.0, 1.0, 1.0)


def adagrad(kernels: Any, n: int) -> Callable[[], None]:
    w, v, g = (floats(n) for _ in range(3))
    return lambda: kernels.adagrad(w, v, g, 1e-3, 1e-8, 1.0)


def sgd(kernels: Any, n: int) -> Callable[[], None]:
    w, g = floats(n), floats(n)
    return lambda: kernels.sgd(w, g, 1e-3, 1.0)


def dot(kernels: Any, n: int) -> Callable[[], None]:
    a, b = floats(n), floats(n)
    return lambda: kernels.dot(a, b)


def pairs(*shape: int) -> np.ndarray:
    """Pairs of bf16."""
    bits = floats(*shape).view(np.uint32) >> 16
    return bits | bits << 16


def dot_pairs(kernels: Any, n: int) -> Callable[[], None]:
    a, b = pairs(n), pairs(n)
    return lambda: kernels.dot_pairs(a, b)


def pair_up(kernels: Any, n: int) -> Callable[[], None]:
    low, high, out = floats(n), floats(n), pairs(n)
    return lambda: kernels.pair_up(low, high, out)


def pair_neighbours(kernels: Any, n: int) -> Callable[[], None]:
    x, out = floats(2 * n), pairs(n)
    return lambda: kernels.pair_neighbours(x, out)


def axpy(kernels: Any, n: int) -> Callable[[], None]:
    x, y = floats(n), floats(n)
    return lambda: kernels.axpy(0.5, x, y)


def shifted_max(kernels: Any, n: int) -> Callable[[], None]:
    z, shift = floats(n), floats(n)
    return lambda: kernels.shifted_max(z, shift)


def softmax_stats(kernels: Any, n: int) -> Callable[[], None]:
    z, shift, reference, total = floats(n // BLOCK, BLOCK), floats(BLOCK), floats(n // BLOCK), floats(n // BLOCK)
    return lambda: kernels.softmax_stats(z, shift, reference, total)


def softmax_gradient(kernels: Any, n: int) -> Callable[[], None]:
    z, shift, norms = floats(n // BLOCK, BLOCK), floats(BLOCK), floats(n // BLOCK) + 2
    dz = np.empty_like(z)
    return lambda: kernels.softmax_gradient(z, shift, norms, 0.5, dz)


def exponentials(kernels: Any, n: int) -> Callable[[], None]:
    z, shift, reference, total = floats(BLOCK, n // BLOCK), floats(BLOCK), floats(n // BLOCK), floats(n // BLOCK)
    return lambda: kernels.exponentials(z, shift, reference, total)


def column_sums(kernels: Any, n: int) -> Callable[[], None]:
    z, sums = floats(n // BLOCK, BLOCK), floats(BLOCK)
    return lambda: kernels.column_sums(z, sums)


def pack(kernels: Any, n: int) -> Callable[[], None]:
    rows, out = floats(BLOCK, n // BLOCK), floats(n // BLOCK, BLOCK + 16)
    return lambda: kernels.pack(rows, out, BLOCK)


def add_choices(kernels: Any, n: int) -> Callable[[], None]:
    tiles, sums = floats(n // BLOCK, 16, 8), floats(8, 8)
    choices = 4 * np.random.default_rng(0).integers(0, 16, (n // BLOCK, 8), dtype=np.uint8)
    return lambda: kernels.add_choices(tiles, choices, sums)


def signed_sums(kernels: Any, n: int) -> Callable[[], None]:
    x, tiles = floats(n // BLOCK, 4, 8), floats(n // BLOCK, 16, 8)
    return lambda: kernels.signed_sums(x, tiles)


def positive_bits(kernels: Any, n: int) -> Callable[[], None]:
    tiles, words = floats(n // 8, 8), np.zeros(8, np.uint64)
    return lambda: kernels.positive_bits(tiles, words)


def sigmoid_gradient(kernels: Any, n: int) -> Callable[[], None]:
    z, shift, weight = (floats(n) for _ in range(3))
    return lambda: kernels.sigmoid_gradient(z, shift, weight, 0.5)


VECTOR_KERNELS = [  # call, length in training, bytes read and written for each element
    (adam, 128, 28),
    (adagrad, 128, 20),
    (sgd, 128, 12),
    (dot, 128, 8),
    (dot_pairs, 64, 8),
    (pair_up, 128, 12),
    (pair_neighbours, 64, 12),
    (axpy, 64, 12),
    (shifted_max, 64, 8),
    (softmax_stats, 64, 8),
    (softmax_gradient, 64, 12),
    (exponentials, 64, 8),
    (column_sums, 64, 4),
    (pack, 256, 8),
    (signed_sums, 64, 10),
    (positive_bits, 8, 4),
    (add_choices, 64, 4),
    (sigmoid_gradient, 64, 16),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("times", [0, 1, BLOCK])
@pytest.mark.parametrize(("make", "length", "bytes_each"), VECTOR_KERNELS, ids=[k[0].__name__ for k in VECTOR_KERNELS])
def test_vectors(benchmark, make, length, bytes_each, times, level):
    n = times * length
    benchmark.group = f"{make.__name__}, n = {n}"
    benchmark(make(_core.Kernels(level), n))
    if benchmark.stats:  # not with --benchmark-disable
        benchmark.extra_info["GB/s"] = bytes_each * n / benchmark.stats["median"] / 1e9


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("m", "n", "k", "transposed", "accumulate"), GEMM_SHAPES)
def test_gemm(benchmark, m, n, k, transposed, accumulate, level):
    kernels, a, b, c = _core.Kernels(level), floats(k, m) if transposed else floats(m, k), floats(k, n), floats(m, n)
    benchmark.group = f"gemm, {m} x {n} x {k}{', accumulated' if accumulate else ''}"
    benchmark(kernels.gemm, a, transposed, b, c, n, accumulate)
    if benchmark.stats:
        benchmark.extra_info["GFLOP/s"] = 2 * m * n * k / benchmark.stats["median"] / 1e9


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("m", "n", "k", "transposed", "accumulate"), GEMM_SHAPES)
def test_gemm_pairs(benchmark, m, n, k, transposed, accumulate, level):
    kernels, inner = _core.Kernels(level), k // 2
    a, b, c = pairs(inner, m) if transposed else pairs(m, inner), pairs(inner, n), floats(m, n)
    benchmark.group = f"gemm of bf16, {m} x {n} x {k}{', accumulated' if accumulate else ''}"
    benchmark(kernels.gemm_pairs, a, transposed, b, c, n, accumulate)
    if benchmark.stats:
        benchmark.extra_info["GFLOP/s"] = 2 * m * n * k / benchmark.stats["median"] / 1e9


@pytest.mark.parametrize("level", LEVELS)
def test_weighted_sum(benchmark, level):
    """The first layer of one row: the weights of its features, summed."""
    n, base, out = 128, floats(4096, 128), floats(128)
    ids, values = np.random.default_rng(0).integers(0, len(base), FEATURES, dtype=np.int32), floats(FEATURES)
    benchmark.group = f"weighted_sum, {FEATURES} rows of {n}"
    benchmark(_core.Kernels(level).weighted_sum, out, ids, values, base)
    if benchmark.stats:
        benchmark.extra_info["GFLOP/s"] = 2 * n * FEATURES / benchmark.stats["median"] / 1e9
