"""Approximate prediction in one pass, compared with the steps between which ranks exchange candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.layer_cases import dense_input, make_layer

from dslide import Config, SparseRows, _core
from dslide.model.calibration import Calibration
from dslide.util.csr import Lists, indptr_of

FEATURES, INPUTS, CELLS = 20, 5, 3


def random_prior(rng: np.random.Generator, neurons: int, is_trained: bool) -> Any:
    """Feature 0 has no links, feature 1 those to all neurons."""
    lists = [np.sort(rng.choice(neurons, rng.integers(0, min(neurons, 60)), replace=False)) for _ in range(FEATURES)]
    lists[0], lists[1] = np.zeros(0, np.int64), np.arange(neurons)
    begin = indptr_of([len(each) for each in lists])
    count = int(begin[-1])
    weights = rng.integers(-2, 3, count).astype(np.float32)  # many sums are equal
    trained = rng.integers(-1, 2, count).astype(np.float32) if is_trained else None
    rows, scale = rng.integers(0, 40, neurons).astype(np.int32), rng.random(_core.LabelPrior.SCALES).astype(np.float32)
    return _core.LabelPrior(
        begin, np.concatenate(lists).astype(np.int32), weights, np.zeros(neurons, np.float32), rows, trained, scale
    )


def random_lists(rng: np.random.Generator, rows: int, neurons: int, most: int) -> Lists:
    lists = [np.sort(rng.choice(neurons, rng.integers(0, min(neurons, most) + 1), replace=False)) for _ in range(rows)]
    return Lists(indptr_of([len(each) for each in lists]), np.concatenate(lists).astype(np.int32))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from([7, 300, 5000]), st.sampled_from([0, 1, 30, 400]),
    st.integers(1, 60), st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()), st.integers(1, 3),
)  # fmt: skip
def test_one_pass_finds_what_the_steps_of_ranks_find(seed, rows, neurons, want, k, kinds, threads):
    has_prior, is_trained, has_excluded, is_calibrated = kinds
    _core.set_threads(threads)
    rng = np.random.default_rng(seed)
    layer = make_layer(INPUTS, neurons, False, Config(), seed % 1000)
    layer.set_bias(rng.integers(-2, 2, neurons).astype(np.float32))
    h = dense_input(rows, INPUTS, seed % 1000)[0].values
    cells, list_of = random_lists(rng, CELLS, neurons, 80), rng.integers(0, CELLS, rows).astype(np.int32)
    excluded = random_lists(rng, rows, neurons, 50) if has_excluded else None
    left_out = (None, None) if excluded is None else (excluded.indptr, excluded.indices)
    calibration = Calibration(neurons, exclusive=False)
    if is_calibrated:
        calibration.set_lines(rng.uniform(0.1, 2, (neurons, 5)))
    arguments, logits, more = {}, None, (None, None)
    if has_prior:
        x = SparseRows.from_scipy(rng.integers(0, 3, (rows, FEATURES)).astype(np.float32))
        csr = x.indptr, x.indices, x.values, _core.row_norms(x.indptr, x.values)
        prior = random_prior(rng, neurons, is_trained)
        logits = prior.logits(*csr)
        more = _core.prior_candidates(logits, np.ascontiguousarray(layer.arrays["bias"][:, 0]), want)[:2]
        names = ("x_offsets", "x_ids", "x_values", "norms")
        arguments = {"prior": prior, "want": want} | dict(zip(names, csr, strict=True))
    lists = _core.join_candidates(neurons, cells.indptr, cells.indices, list_of, *more, *left_out)
    expected = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
    layer.native.topk_of_lists(h, *lists, *expected, logits, *calibration.native)
    numbers, saturates = calibration.native
    found = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
    _core.topk_of_cells(
        layer.native, h, cells.indptr, cells.indices, list_of, *found, excluded_offsets=left_out[0],
        excluded_ids=left_out[1], calibration=numbers, saturates=saturates, **arguments,
    )  # fmt: skip
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_arguments_that_do_not_belong_together_are_refused():
    layer = make_layer(INPUTS, 9, False, Config())
    h = dense_input(2, INPUTS, 0)[0].values
    best = np.empty((2, 3), np.int32), np.empty((2, 3), np.float32)
    lists, list_of = (np.array([0, 2]), np.array([1, 4], np.int32)), np.zeros(2, np.int32)
    prior = random_prior(np.random.default_rng(0), 8, True)
    rows = {"x_offsets": np.zeros(3, np.int64), "x_ids": np.zeros(0, np.int32), "x_values": np.zeros(0, np.float32)}
    wrong: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("h must be rows x stride", (h[:1], *lists, list_of, *best), {}),
        ("ids and scores must be rows x k", (h, *lists, list_of, best[0], best[1][:, :2].copy()), {}),
        ("there is no such list", (h, *lists, list_of + 1, *best), {}),
        ("lists must be in order", (h, lists[0], lists[1][::-1].copy(), list_of, *best), {}),
        ("out of range", (h, lists[0], lists[1] + 5, list_of, *best), {}),
        ("a prior needs rows", (h, *lists, list_of, *best), {"prior": prior}),
        ("these neurons", (h, *lists, list_of, *best), {"prior": prior, **rows, "norms": np.ones(2)}),
    ]
    for message, arguments, more in wrong:
        with pytest.raises(ValueError, match=message):
            _core.topk_of_cells(layer.native, *arguments, **more)
