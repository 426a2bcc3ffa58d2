"""The loss over all labels: against numpy, against the reference network, and on several ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from reference.network import Activity, ReferenceNetwork
from support.inprocess import run_ranks
from support.plain import PLAIN

from dslide import Config, Network, SparseRows
from dslide.model import prediction as predictor_module

FEATURES, LABELS, ROWS = 30, 150, 41
NETWORKS = {
    "softmax": {},
    "two layers": {"hidden": (24, 17), "activation": "linear"},
    "sampled last": {"hidden_share": (0.5,)},  # the output layer's input is sparse
    "bf16": {"weights": "bf16"},
    "sigmoid": {"loss": "sigmoid"},
    "sigmoid, sampled last": {"loss": "sigmoid", "hidden_share": (0.5,)},
    "sampled training": {"output": "lsh", "hash_hits": 3, "random_negatives": 10},  # has no say in this loss
}


def make_network(name, comm=None):
    options = PLAIN | {"hidden": (24,), "output": "full", "seed": 4, "init_scale": 4.0} | NETWORKS[name]
    network = Network(Config(**options), FEATURES, LABELS, comm=comm)
    bias = np.random.default_rng(1).standard_normal(LABELS).astype(np.float32)
    network.output.arrays["bias"][:, 0] = network.shard.part(bias)
    return network


def make_rows(empty=True):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES)) * (rng.random((ROWS, FEATURES)) < 0.3)
    y = rng.integers(1, 4, (ROWS, LABELS)) * (rng.random((ROWS, LABELS)) < 0.03)
    y[np.arange(ROWS), rng.integers(0, LABELS, ROWS)] = 2
    if empty:
        y[::6] = 0
    return x, y.astype(np.float64)


def by_reference(network, x, y):
    """Mean over the rows that count, in float64."""
    if network.config.loss == "softmax":
        x, y = x[y.any(axis=1)], y[y.any(axis=1)]
        y = y / y.sum(axis=1, keepdims=True)
    sizes = [*network.config.hidden, LABELS]
    all_of = [Activity(np.ones((len(x), n), bool), np.ones((len(x), n))) for n in sizes]
    return ReferenceNetwork(network).loss(x, y, all_of)


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_loss_of_the_reference_network(name, monkeypatch):
    network, (x, y) = make_network(name), make_rows()
    expected = by_reference(network, x, y)
    given = SparseRows.from_scipy(x), SparseRows.from_scipy(y)
    assert network.exact_loss(*given) == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(predictor_module, "LOGIT_BYTES", 7 * 4 * LABELS)  # blocks of few rows
    assert network.exact_loss(*given) == pytest.approx(expected, rel=1e-5)


def test_it_is_cross_entropy_worked_out_by_numpy():
    network, (x, y) = make_network("softmax"), make_rows(empty=False)
    w0, w1 = (layer.arrays["weights"].astype(np.float64) for layer in network.layers)
    h = np.maximum(x @ w0[:, :24], 0)
    z = h @ w1[:, :24].T + network.output.arrays["bias"][:, 0]
    log_softmax = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    expected = -(y / y.sum(axis=1, keepdims=True) * log_softmax).sum(axis=1).mean()
    assert network.exact_loss(SparseRows.from_scipy(x), SparseRows.from_scipy(y)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_ranks_have_the_loss_of_one(name, size):
    x, y = map(SparseRows.from_scipy, make_rows())
    expected = make_network(name).exact_loss(x, y)
    found = run_ranks(size, lambda comm: make_network(name, comm).exact_loss(x, y))
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(expected, rel=1e-5)


def test_labels_beyond_the_network_and_rows_without_labels_do_not_count():
    network, (x, y) = make_network("softmax"), make_rows(empty=False)
    more = np.hstack([y, np.ones((ROWS, 2))])
    more[3, :LABELS] = 0  # only labels that the network lacks
    rest = np.arange(ROWS) != 3
    expected = network.exact_loss(SparseRows.from_scipy(x[rest]), SparseRows.from_scipy(y[rest]))
    assert network.exact_loss(SparseRows.from_scipy(x), SparseRows.from_scipy(more)) == pytest.approx(expected)
    nothing = SparseRows.from_scipy(np.zeros((ROWS, LABELS)))
    assert math.isnan(network.exact_loss(SparseRows.from_scipy(x), nothing))
