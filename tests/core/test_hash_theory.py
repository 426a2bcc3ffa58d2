"""How often two vectors get the same code, against the theory of each family."""

from __future__ import annotations

import numpy as np
import pytest

from dslide import _core

FUNCTIONS = 60_000  # hash functions, k = 1 each, whose codes are compared


def agreement(family: str, a: np.ndarray, b: np.ndarray, table_bits: int) -> float:
    """Share of hash functions in which two vectors agree: 1,000 for each of many seeds."""
    pair = np.stack([a, b]).astype(np.float32)
    agree = 0
    for seed in range(FUNCTIONS // 1000):
        codes = _core.HashFunctions(family, len(a), 1, 1000, table_bits, seed).dense(pair)
        agree += int((codes[0] == codes[1]).sum())
    return agree / FUNCTIONS


def assert_close(measured: float, expected: float, samples: float = FUNCTIONS, allowance: float = 1e-9) -> None:
    """Within 4.5 standard deviations of a share estimated from so many samples."""
    assert abs(measured - expected) < 4.5 * np.sqrt(expected * (1 - expected) / samples) + allowance


def at_angle(rng: np.random.Generator, dimension: int, angle: float) -> tuple[np.ndarray, np.ndarray]:
    a, other = np.linalg.qr(rng.standard_normal((dimension, 2)))[0].T
    return a, np.cos(angle) * a + np.sin(angle) * other


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.8])
def test_simhash_agrees_with_one_minus_the_angle_over_pi(share):
    # Exact for Gaussian projections; nearly so for +-1 and a few hundred coordinates, hence the tolerance.
    a, b = at_angle(np.random.default_rng(1), 512, share * np.pi)
    assert_close(agreement("simhash", a, b, 1), 1 - share, allowance=0.002)


def winners(x: np.ndarray, subsets: np.ndarray, zeros_count: bool) -> np.ndarray:
    """Position of the largest in each subset, -1 if there is none."""
    values = x[subsets]
    if not zeros_count:
        values = np.where(values == 0, -np.inf, values)
    best = values.argmax(axis=1)
    return np.where(values.max(axis=1) == -np.inf, -1, best)


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("family", ["wta", "dwta"])
def test_wta_agrees_as_often_as_winners_of_independent_subsets_do(family, noise):
    rng = np.random.default_rng(2)
    a = np.maximum(rng.standard_normal(128), 0)  # half of it zeros, as after ReLU
    b = np.maximum(a + noise * rng.standard_normal(128), 0)
    count = 200_000
    subsets = rng.random((count, 128)).argpartition(8, axis=1)[:, :8]
    rng.permuted(subsets, axis=1, out=subsets)
    first, second = (winners(x, subsets, family == "wta") for x in (a, b))
    if family == "dwta":
        # Empty bins are rare; they borrow, like an independent subset with a winner.
        first, second = (np.where(codes < 0, rng.choice(codes[codes >= 0], count), codes) for codes in (first, second))
    reference = (first == second).mean()
    # Both sides are estimates; bins of one permutation are disjoint, which only lowers the variance.
    assert_close(agreement(family, a, b, 3), reference, 1 / (1 / FUNCTIONS + 1 / count))


def test_dwta_borrows_for_sparse_vectors_so_that_they_agree_with_themselves_and_not_with_others():
    # 60 of 2,000 coordinates are nonzero: nearly 8 in 10 bins of 8 are empty. Vectors in the same order agree;
    # disjoint ones agree by chance, one time in 8, not whenever both are empty.
    rng = np.random.default_rng(3)
    columns = rng.permutation(2000)
    a, b, same_order = (np.zeros(2000) for _ in range(3))
    a[columns[:60]] = rng.random(60) + 0.1
    b[columns[60:120]] = rng.random(60) + 0.1
    same_order[columns[:60]] = a[columns[:60]] ** 3
    assert agreement("dwta", a, same_order, 3) == 1
    # Codes borrowed from the same bin are dependent: far fewer independent samples than functions.
    assert_close(agreement("dwta", a, b, 3), 1 / 8, FUNCTIONS / 20)


@pytest.mark.parametrize("shared", [20, 100, 180])
def test_minhash_agrees_with_the_jaccard_similarity(shared):
    # Sets of 200 in a dimension of 1,600, so that an eighth is all of the set; most of 1,000 bins are empty.
    rng = np.random.default_rng(4)
    columns = rng.permutation(1600)
    a, b = np.zeros(1600), np.zeros(1600)
    a[columns[:200]] = rng.random(200) + 0.1
    b[columns[200 - shared : 400 - shared]] = rng.random(200) + 0.1
    jaccard = shared / (400 - shared)
    # One permutation holds no more than |union| independent comparisons, whatever the number of bins.
    assert_close(agreement("minhash", a, b, 24), jaccard, FUNCTIONS / 1000 * (400 - shared))


def test_minhash_looks_at_the_largest_positive_values_only():
    rng = np.random.default_rng(5)
    a = rng.standard_normal(80)
    b = a.copy()
    order = np.argsort(-a)
    b[order[10:]] = -np.abs(rng.standard_normal(70)) * 9  # all but the ten largest
    assert agreement("minhash", a, b, 24) == 1
    b[order[9]] = 0
    assert agreement("minhash", a, b, 24) < 1


@pytest.mark.parametrize("family", ["simhash", "wta", "dwta"])
def test_k_codes_are_independent(family):
    # Joined codes agree with the product of the single codes' chances, averaged over many functions.
    rng = np.random.default_rng(6)
    a = np.abs(rng.standard_normal(512))
    b = a + 0.3 * rng.standard_normal(512)
    bits = 1 if family == "simhash" else 3
    single = agreement(family, a, b, bits)
    pair = np.stack([a, b]).astype(np.float32)
    joined = 0
    for seed in range(60):
        codes = _core.HashFunctions(family, 512, 3, 1000, 3 * bits, 10_000 + seed).dense(pair)
        joined += int((codes[0] == codes[1]).sum())
    assert abs(joined / 60_000 - single**3) < 0.02
