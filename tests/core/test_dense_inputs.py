"""Dense inputs of a layer that has its weights by input: as sparse inputs that have all elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support.bf16 import STORED
from support.layer_cases import make_active, make_layer

from dslide import _core
from dslide.config import Config
from dslide.model.activations import Dense, Mixed, sparse_elements
from dslide.util.arrays import aligned_zeros, padded
from dslide.util.csr import Csr

base = Config(optimizer="adam", learning_rate=0.05, weight_decay=0.1, epsilon=1e-2, beta1=0.8, beta2=0.9)
few = settings(max_examples=40, deadline=None)


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def matrix(rows, width, rng):
    values = aligned_zeros(rows, padded(width))
    values[:, :width] = rng.standard_normal((rows, width))
    return Dense(values)


def inputs(rows, sparse, dense, rng):
    """Dense rows, or rows with both kinds of features."""
    if sparse == 0:
        return matrix(rows, dense, rng)
    there = rng.random((rows, sparse)) < 0.3
    elements = Csr.from_dense(np.where(there, rng.standard_normal((rows, sparse)), 0).astype(np.float32))
    return Mixed(elements, matrix(rows, dense, rng), dense)


@few
@given(
    rows=st.sampled_from([1, 5, 95, 96, 97, 200]),
    neurons=st.sampled_from([1, 16, 63, 64, 65, 130]),
    sparse=st.sampled_from([0, 1, 20]),
    dense=st.sampled_from([1, 16, 47, 48, 49, 130]),
    kind=st.sampled_from(["everything", "everything", "shared", "row"]),
    stored=st.sampled_from(STORED),
    optimizer=st.sampled_from(["adam", "adagrad", "sgd"]),
    seed=st.integers(0, 2**32 - 1),
    threads=st.sampled_from([1, 2, 3]),
)
def test_a_layer_learns_as_from_sparse_rows(rows, neurons, sparse, dense, kind, stored, optimizer, seed, threads):
    _core.set_threads(threads)
    rng = np.random.default_rng(seed)
    config = base.replace(optimizer=optimizer, weights=stored)
    ours, reference = (make_layer(sparse + dense, neurons, True, config, seed) for _ in range(2))
    active = make_active(kind, neurons, rows, seed)
    for _ in range(2):
        x = inputs(rows, sparse, dense, rng)
        elements = sparse_elements(x, sparse + dense)
        z, expected = ours.forward(x, active), reference.forward(elements, active)
        assert_allclose(z, expected, rtol=1e-4, atol=1e-4)
        dz = aligned_zeros(*z.shape)
        width = neurons if active.is_everything else z.shape[1]
        dz[:, :width] = rng.standard_normal((len(z), width))
        assert ours.learn(x, active, dz, want_dx=False)[0]
        assert reference.learn(elements, active, dz, want_dx=False)[0]
        for name, array in ours.arrays.items():
            # stochastic rounding to bf16 may fall to the other side of a number
            close = {"rtol": 2e-2, "atol": 2e-2} if stored == "bf16" else {"rtol": 1e-3, "atol": 1e-3}
            theirs = reference.arrays[name]
            if array.dtype == np.uint16:
                array, theirs = ((a.astype(np.uint32) << 16).view(np.float32) for a in (array, theirs))
            assert_allclose(array, theirs, err_msg=name, **close)


def test_results_do_not_depend_on_the_number_of_threads():
    found = []
    for threads in (1, 2, 5):
        _core.set_threads(threads)
        rng, layer = np.random.default_rng(0), make_layer(333, 77, True, base)
        x, active = matrix(210, 333, rng), _core.ActiveSet.everything(77, 210)
        z = layer.forward(x, active)
        layer.learn(x, active, z, want_dx=False)
        found.append((z, layer.arrays["weights"].copy()))
    for z, weights in found[1:]:
        assert_array_equal(z, found[0][0])
        assert_array_equal(weights, found[0][1])


def test_infinite_gradients_are_reported():
    layer, active = make_layer(40, 20, True, base), _core.ActiveSet.everything(20, 3)
    x, dz = matrix(3, 40, np.random.default_rng(0)), aligned_zeros(3, padded(20))
    dz[1, 2] = np.inf
    before = layer.arrays["weights"].copy()
    assert not layer.learn(x, active, dz, want_dx=False)[0]
    assert_array_equal(layer.arrays["weights"], before)


def test_wrong_arguments_are_refused():
    layer = make_layer(40, 20, True, base)
    none = np.zeros(4, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
    z, x, all_of_them = aligned_zeros(3, 32), aligned_zeros(3, 48), _core.ActiveSet.everything(20, 3)
    for message, given_z, given_x, width, active in (
        ("rows x inputs", z, x[:2], 40, all_of_them),
        ("rows x inputs", z, x, 49, all_of_them),
        ("rows x inputs", z, x, 41, all_of_them),
        ("must be padded", aligned_zeros(3, 20), x, 40, all_of_them),
        ("all neurons", aligned_zeros(1, 30), x, 40, make_active("shared", 20, 3, 0)),
    ):
        if not active.is_everything:
            given_z = aligned_zeros(1, active.slots)
        with pytest.raises(ValueError, match=message):
            layer.native.forward(*none, active, np.ascontiguousarray(given_z), np.ascontiguousarray(given_x), width)


# ---- rows of a matrix -----------------------------------------------------------------------------------------------


def gathered(values, ids):
    out = np.full((len(ids), padded(values.shape[1])), np.nan, np.float32)
    _core.gather_dense(values.view(np.uint16) if values.dtype == np.float16 else values, np.array(ids, np.int64), out)
    assert not out[:, values.shape[1] :].any()
    return out[:, : values.shape[1]]


def test_all_numbers_of_16_bits_are_converted():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    assert_array_equal(gathered(every, range(256)), every.astype(np.float32))


@few
@given(
    rows=st.integers(1, 50), columns=st.sampled_from([1, 15, 16, 17, 1000]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_rows_of_a_matrix_are_gathered(rows, columns, dtype, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)).astype(dtype)
    ids = rng.integers(0, rows, 60)
    assert_array_equal(gathered(values, ids), values[ids].astype(np.float32))


def test_rows_that_are_not_there_are_refused():
    for bad in (-1, 3):
        with pytest.raises(IndexError, match=f"there is no row {bad} among 3"):
            gathered(np.zeros((3, 4), np.float32), [0, bad])
    with pytest.raises(ValueError, match="expected numbers of"):
        gathered(np.zeros((3, 4), np.int32), [0])
    with pytest.raises(ValueError, match="at least the columns"):
        _core.gather_dense(np.zeros((3, 4), np.float32), np.zeros(2, np.int64), np.zeros((2, 3), np.float32))
