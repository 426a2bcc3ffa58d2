"""A layer announces every change of its arrays: to a listener before it, to the LSH index after it. A change that is
not announced would corrupt a checkpoint, or leave neurons in buckets where they no longer belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.layer_cases import dense_input, make_targets, sparse_input
from support.plain import PLAIN

from dslide import _core
from dslide.config import Config
from dslide.model.active_sets import of_batch
from dslide.model.hash_parameters import automatic
from dslide.model.layer import Layer
from dslide.model.layout import LayerSpec

ROWS, INPUTS, NEURONS = 130, 20, 90
ACTIVE = np.array([3, 7, 8, 50, 89], np.int32)


class Listener:
    """Copies the rows that are announced, once, as they are then."""

    def __init__(self, layer: Layer) -> None:
        self._arrays = {f"{layer.name}.{name}": array for name, array in layer.state.items()}
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
    layer.listener = listener = Listener(layer)
    CHANGES[change](layer, x, active, labels)
    moments = {f"{which}_moment{i}" for which in ("weights", "bias") for i in (1, 2)}
    assert listener.check() == {"weights", "bias", "weights_clock", "bias_clock", "moved"} | moments
    assert layer.lsh is not None
    assert np.flatnonzero(layer.lsh.moved).tolist() == ACTIVE.tolist()


def test_rebuilding_and_setting_biases_are_announced() -> None:
    layer = make(False)
    layer.learn(dense_input(ROWS, INPUTS, 0)[0], layer.everything(ROWS), np.full((ROWS, 96), 9, np.float32))
    layer.listener = listener = Listener(layer)
    assert layer.rebuild_tables() == NEURONS
    layer.set_bias(np.arange(NEURONS, dtype=np.float32))
    assert listener.check() == {"codes", "moved", "bias"}
