"""Softmax whose matrix products are of bf16: what is multiplied is rounded to the nearest, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference.network import Activity
from support.bf16 import nearest
from support.layer_cases import dense_input, make_active, make_layer, make_targets, softmax_learn
from support.plain import PLAIN

from dslide import _core
from dslide.config import Config
from dslide.data import Dataset, SparseRows
from dslide.errors import ConfigError
from dslide.model.storage import widened
from dslide.training.trainer import Trainer

ROUNDING = 2.0**-8  # of a number, at most, relative
base = Config(optimizer="sgd", learning_rate=1.0, loss="softmax", products="bf16")


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def rounded(x):
    return widened(nearest(x)).astype(np.float64)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.sampled_from([1, 2, 5, 96, 97, 128, 131, 200]),
    neurons=st.sampled_from([1, 2, 16, 63, 64, 65, 130]),
    inputs=st.sampled_from([1, 16, 17, 130]),
    kind=st.sampled_from(["everything", "shared"]),
    keep=st.booleans(),
    cut=st.sampled_from([0, 128]),
    seed=st.integers(0, 2**32 - 1),
    threads=st.sampled_from([1, 2, 3]),
)
def test_one_step_is_that_of_rounded_numbers(rows, neurons, inputs, kind, keep, cut, seed, threads):
    """Logits are exact but for the rounding of inputs and weights; gradients have errors of at most what rounding the
    numbers that are multiplied can do."""
    _core.set_threads(threads)
    layer = make_layer(inputs, neurons, False, base, seed)
    weights, bias = (layer.arrays[name].astype(np.float64) for name in ("weights", "bias"))
    weights = weights[:, :inputs]
    x, matrix = dense_input(rows, inputs, seed)
    targets = make_targets(rows, neurons, seed, True)
    active = make_active(kind, neurons, rows, seed, (targets.indptr, targets.indices))
    activity = Activity.of(active, neurons)
    labels = _core.FoundLabels(active, targets.indptr, targets.indices, targets.values)
    dx = np.full_like(x.values, np.nan)
    kept = np.full(layer.native.kept_size(active), np.nan, np.float32) if keep else None
    fine, loss, norm = softmax_learn(layer, x, active, labels, dx, 1 / rows, kept, cut)
    assert fine

    z = rounded(matrix) @ rounded(weights).T + bias.T
    weighted = activity.weight * np.exp(z)
    assert_allclose(norm, np.log(weighted.sum(axis=1)), rtol=1e-5, atol=2e-5)
    assert_allclose(loss, (targets.matrix * (np.log(weighted.sum(axis=1))[:, None] - z)).sum(), rtol=1e-4, atol=1e-4)
    share = weighted / weighted.sum(axis=1, keepdims=True) / rows
    wanted = share @ rounded(weights) - targets.matrix @ weights / rows
    error = np.abs(dx[:, :inputs] - wanted)
    assert (error <= 1.1 * ROUNDING * (share @ np.abs(weights)) + 1e-6).all()
    assert not dx[:, inputs:].any()
    for name, of in (("weights", matrix), ("bias", np.ones((rows, 1)))):
        before = weights if name == "weights" else bias
        step = before - layer.arrays[name][:, : before.shape[1]]
        error = np.abs(step - (share - targets.matrix / rows).T @ of)
        assert (error <= 2.2 * ROUNDING * (share.T @ np.abs(of)) + 2e-6).all(), name


def test_numbers_are_rounded():
    """What bf16 can't tell apart gives the same normalisers, what it can does not."""
    norms = []
    for more in (0.0, 2.0**-12, 2.0**-6):
        layer = make_layer(16, 20, False, base)
        x, _ = dense_input(3, 16, 0)
        x.values[:, :16] = 1 + more
        sums = np.full((2, 3), np.nan, np.float32)
        layer.native.softmax_forward(x.values, layer.everything(3), None, *sums)
        norms.append(sums[0] + np.log(sums[1]))
    assert (norms[0] == norms[1]).all()
    assert (norms[0] != norms[2]).all()


def test_training_learns_what_float_products_learn():
    """Losses of whole runs, over sampled outputs and with hash tables, differ by no more than rounding lets them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 60)) * (rng.random((600, 60)) < 0.1)
    y = np.eye(40)[np.abs(x).argmax(axis=1) % 40]
    data = Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y))
    for output in ("full", "random", "lsh"):
        found = {}
        for products in ("float32", "bf16"):
            options = PLAIN | {
                "hidden": (24,),
                "batch_size": 50,
                "threads": 1,
                "random_negatives": 20,
                "output": output,
            }
            found[products] = Trainer(Config(**options, products=products), 60, 40).fit(data).loss
        assert found["float32"] != found["bf16"]
        assert_allclose(found["bf16"], found["float32"], rtol=0.02)


@pytest.mark.parametrize(("name", "value"), [("loss", "sigmoid"), ("active_sets", "row"), ("hidden_share", (0.5,))])
def test_where_there_are_no_such_products_they_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"products = bf16 .* not for {name} ="):
        Config(hidden=(16,), products="bf16", **{name: value})
