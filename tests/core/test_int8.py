"""Weights of int8 with a scale for each row: kernels against the reference, layers against those of the same numbers as
floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support.kernel_cases import REFERENCE, few, lengths, seeds
from support.layer_cases import any_input, dense_input, make_layer

from dslide import _core
from dslide.config import Config
from dslide.model.layer import Layer
from dslide.model.storage import rounded_to_int8, widened

LEVELS = [name for name in _core.isa_levels() if name != "reference"]


@pytest.fixture(params=LEVELS, scope="module")
def kernels(request):
    return _core.Kernels(request.param)


@few
@given(n=lengths, offset=st.integers(0, 3), seed=seeds)
def test_kernels_agree_with_the_reference(kernels, n, offset, seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(n).astype(np.float32)
    b = rng.integers(-127, 128, n + offset).astype(np.int8)[offset:]  # at any address
    assert_allclose(kernels.dot_int8(a, b), REFERENCE.dot_int8(a, b), rtol=1e-4, atol=1e-2)
    got, expected = np.empty(n, np.float32), np.empty(n, np.float32)
    kernels.widen_int8(b, 0.37, got)
    REFERENCE.widen_int8(b, 0.37, expected)
    assert_array_equal(got, expected)


@few
@given(rows=st.integers(1, 30), columns=st.integers(1, 40), seed=seeds)
def test_no_number_is_off_by_more_than_half_a_step(rows, columns, seed):
    numbers = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    numbers[0] = 0
    stored, scale = rounded_to_int8(numbers)
    assert stored.dtype == np.int8
    assert (np.abs(widened(stored, scale) - numbers) <= 0.501 * np.abs(numbers).max(axis=1, keepdims=True) / 127).all()


def as_int8(layer: Layer) -> tuple[Layer, Layer]:
    """The layer with weights of int8, and with the numbers that these stand for as floats."""
    stored, scale = rounded_to_int8(layer.arrays["weights"])
    bias = layer.arrays["bias"]
    arrays = {"weights": stored, "weights_scale": scale, "bias": bias}
    small = Layer(layer.spec, Config(weights="int8"), 0, trainable=False, weights=arrays)
    floats = {"weights": widened(stored, scale), "bias": bias}
    return small, Layer(layer.spec, Config(), 0, trainable=False, weights=floats)


@few
@given(
    sparse=st.booleans(), rows=st.integers(1, 12), inputs=st.integers(1, 40), neurons=st.integers(1, 150), seed=seeds
)
def test_a_layer_computes_what_one_of_the_same_floats_does(sparse, rows, inputs, neurons, seed):
    small, same = as_int8(make_layer(inputs, neurons, sparse, Config(), seed))
    x = any_input(sparse, rows, inputs, seed)[0]
    active = small.everything(rows)
    assert_allclose(small.forward(x, active), same.forward(x, active), rtol=1e-4, atol=1e-5)
    ids = np.arange(0, neurons, 2, dtype=np.int32)
    assert_array_equal(small.vectors(ids), same.vectors(ids))


@few
@given(rows=st.integers(1, 12), inputs=st.integers(1, 40), neurons=st.integers(1, 150), seed=seeds)
def test_top_k_of_few_rows_and_of_many(rows, inputs, neurons, seed):
    small, same = as_int8(make_layer(inputs, neurons, False, Config(), seed))
    x, _ = dense_input(rows, inputs, seed)
    k, found = min(5, neurons), []
    lists = np.arange(rows + 1) * neurons, np.tile(np.arange(neurons, dtype=np.int32), rows)
    for layer in (small, same):
        ids, scores = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
        layer.native.topk(x.values, ids, scores)
        found.append(scores)
        layer.native.topk_of_lists(x.values, *lists, ids, scores)
        found.append(scores)
    for scores in found[1:]:
        assert_allclose(scores, found[0], rtol=1e-4, atol=1e-5)


def test_int8_is_for_prediction_only():
    stored, scale = np.zeros((3, 16), np.int8), np.ones((3, 1), np.float32)
    none = np.zeros((0, 0), np.float32)
    with pytest.raises(ValueError, match="prediction only"):
        _core.Parameters(stored, none, none, np.zeros(3, np.uint32), 16, scale)
    with pytest.raises(ValueError, match="a scale for each row"):
        _core.Parameters(stored, none, none, np.zeros(0, np.uint32), 16, scale[:2])
