"""Layers and the label prior announce every change of their arrays: to a listener before it, layers also to the LSH
index after it. A change that is not announced would corrupt a checkpoint, or leave neurons in buckets where they no
longer belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.layer_cases import dense_input, make_targets, sparse_input
from support.plain import PLAIN

from dslide import _core
from dslide.config import Config
from dslide.data import SparseRows
from dslide.model.active_sets import of_batch
from dslide.model.hash_parameters import automatic
from dslide.model.layer import Layer
from dslide.model.layout import LayerSpec
from dslide.model.network import Network
from dslide.util.csr import Csr

ROWS, INPUTS, NEURONS = 130, 20, 90
ACTIVE = np.array([3, 7, 8, 50, 89], np.int32)


class Listener:
    """Copies the rows that are announced, once, as they are then."""

    def __init__(self, prefix: str, arrays: dict[str, Any]) -> None:
        self._arrays = {prefix + name: array for name, array in arrays.items()}
        self._copies = {name: array.copy() for name, array in self._arrays.items()}
        self.before = {name: array.copy() for name, array in self._arrays.items()}
        self._announced = {name: np.zeros(len(array), bool) for name, array in self._arrays.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def before_change(self, name: str, rows: Any = None) -> None:
        rows = slice(None) if rows is None else rows
        self._copies[name][rows] = self._arrays[name][rows]
        self._announced[name][rows] = True

    def check(self) -> set[str]:
        """Every row that changed was announced while it was as before; the names of arrays that changed."""
        changed = set()
        for name, array in self._arrays.items():
            differs = np.any((array != self.before[name]).reshape(len(array), -1), axis=1)
            assert np.all(self._announced[name][differs]), name
            np.testing.assert_array_equal(self._copies[name], self.before[name])
            changed |= {name.split(".")[1]} if differs.any() else set()
        return changed


def softmax_step(layer: Layer, x: Any, active: Any, labels: Any) -> None:
    reference, total, dx = np.empty(ROWS, np.float32), np.empty(ROWS, np.float32), np.empty_like(x.values)
    layer.softmax_forward(x, active, labels, reference, total, dx)
    layer.softmax_step(x, active, labels, reference + np.log(total), 0.1, None)


def sigmoid_step(layer: Layer, x: Any, active: Any, labels: Any) -> None:
    kept = np.empty(layer.native.kept_size(active), np.float32)
    layer.sigmoid_backward(x, active, labels, 0.1, np.empty_like(x.values), kept, 0, ROWS)
    layer.sigmoid_step(x, active, kept)


CHANGES: dict[str, Callable[[Layer, Any, Any, Any], Any]] = {
    "learn": lambda layer, x, active, _: layer.learn(x, active, np.ones((1, active.slots), np.float32)),
    "softmax_step": softmax_step,
    "sigmoid_learn": lambda layer, x, active, labels: layer.sigmoid_learn(
        x, active, labels, 0.1, np.empty_like(x.values)
    ),
    "sigmoid_step": sigmoid_step,
}


def make(sparse: bool) -> Layer:
    config = Config(**PLAIN | {"threads": 1, "bucket_size": 0})
    spec = LayerSpec(0, INPUTS, NEURONS, sparse, 1.0, True, automatic(NEURONS, INPUTS, "simhash"))
    layer = Layer(spec, config, 1, scale=0.3)
    layer.optimizer.rate = 0.1
    layer.rebuild_tables()
    return layer


@pytest.mark.parametrize(("change", "sparse"), [*((name, False) for name in CHANGES), ("learn", True)])
def test_steps_announce_what_they_change(change: str, sparse: bool) -> None:
    layer = make(sparse)
    x = sparse_input(ROWS, INPUTS, 0)[0] if sparse else dense_input(ROWS, INPUTS, 0)[0]
    active, targets = of_batch(ACTIVE, ROWS, NEURONS), make_targets(ROWS, NEURONS, 1, True)
    labels = _core.FoundLabels(active, targets.indptr, targets.indices, targets.values)
    layer.listener = listener = Listener(f"{layer.name}.", layer.state)
    CHANGES[change](layer, x, active, labels)
    moments = {f"{which}_moment{i}" for which in ("weights", "bias") for i in (1, 2)}
    assert listener.check() == {"weights", "bias", "weights_clock", "bias_clock", "moved"} | moments
    assert layer.lsh is not None
    assert np.flatnonzero(layer.lsh.moved).tolist() == ACTIVE.tolist()


def test_rebuilding_and_setting_biases_are_announced() -> None:
    layer = make(False)
    layer.learn(dense_input(ROWS, INPUTS, 0)[0], layer.everything(ROWS), np.full((ROWS, 96), 9, np.float32))
    layer.listener = listener = Listener(f"{layer.name}.", layer.state)
    assert layer.rebuild_tables() == NEURONS
    layer.set_bias(np.arange(NEURONS, dtype=np.float32))
    assert listener.check() == {"codes", "moved", "bias"}


@pytest.mark.parametrize("sparse", [False, True])
def test_starting_again_is_announced(sparse: bool) -> None:
    layer = make(sparse)
    for name, array in layer.arrays.items():
        array[...] = 0 if name in ("weights", "bias") else 1  # so that everything changes
    assert layer.lsh is not None
    layer.listener = listener = Listener(f"{layer.name}.", layer.state)
    weights = np.arange(1, NEURONS * INPUTS + 1, dtype=np.float32).reshape(NEURONS, INPUTS)
    layer.restart(weights, np.ones(NEURONS, np.float32))
    moments = {f"{which}_moment{i}" for which in ("weights", "bias") for i in (1, 2)}
    assert listener.check() == {"weights", "bias", "weights_clock", "bias_clock", "moved"} | moments
    stored = layer.arrays["weights"]
    np.testing.assert_array_equal(stored[:INPUTS, :NEURONS].T if sparse else stored[:, :INPUTS], weights)
    assert not layer.lsh.built


def test_a_step_of_the_label_prior_is_announced() -> None:
    x, targets = sparse_input(ROWS, INPUTS, 0)[0], make_targets(ROWS, NEURONS, 1, False)
    rows = SparseRows(x.indptr, x.indices, x.values, INPUTS)
    y = SparseRows(targets.indptr, targets.indices, targets.values, NEURONS)
    config = {"hidden": (8,), "threads": 1, "prior_labels": 3, "prior_learning_rate": 1.0, "prior_hits": 1}
    network = Network(Config(**PLAIN | config | {"output": "random", "prior_scale": 2.0}), INPUTS, NEURONS)
    network.set_label_prior(rows, y, same=False)
    assert network.prior is not None
    listener = Listener("prior.", {name: array for name, array in network.prior.arrays.items() if array.size})
    network.watch(listener)
    some = Csr(x.indptr[:4], x.indices[: x.indptr[3]], x.values[: x.indptr[3]])
    own = Csr(targets.indptr[:4], targets.indices[: targets.indptr[3]], targets.values[: targets.indptr[3]])
    network.train_step(some, own, 0, 0.01)
    assert listener.check() == {"trained", "scale", "scale_moment"}
