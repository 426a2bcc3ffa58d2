"""What the parts of a training step cost at least: floating-point operations, and bytes to and from memory.

A multiply-add is two operations; exponentials, biases and the optimizer's own arithmetic, small beside the products,
are not counted. Bytes count each array that a part touches once, as if caches did the rest: a lower bound. In the
formulas B is rows of the batch, U active neurons of this rank, K inputs of the layer, S slots of the active set (B U if
rows share their active neurons). Where no formula is known the answer is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dslide._core import ActiveSet
from dslide.data import Features, SparseRows, dense_part, sparse_part
from dslide.model.activations import Dense, Input, Mixed
from dslide.model.layer import Layer
from dslide.util.arrays import Floats
from dslide.util.csr import Csr

FLOAT = 4  # bytes of a number in activations and their gradients


@dataclass(frozen=True)
class Work:
    """Operations and bytes of a part of a step."""

    flops: int
    bytes: int


def reading(x: Features, y: SparseRows) -> Work:
    """A batch's rows copied out of the data: ids and values read and written. Dense ones are copied later (`input`)."""
    return Work(0, 2 * sum(part.indices.nbytes + part.values.nbytes for part in (sparse_part(x), y)))


def taking_input(x: Features | Input) -> Work:
    """`Network.input_of`: dense numbers of a batch's rows read, and written as float32."""
    dense = dense_part(x) if isinstance(x, Features) else None
    return Work(0, 0 if dense is None else len(dense) * dense.columns * (dense.values.itemsize + FLOAT))


def forward(layer: Layer, x: Input, active: ActiveSet) -> Work | None:
    """`Layer.forward`. Dense input: 2 S K; weights U K and inputs B K read, sums S written. Sparse input, with n
    elements of d different inputs, and all U neurons: 2 n U; weights d U, ids and values read, sums B U written."""
    if isinstance(x, Dense):
        moved = _weights(layer, active) + FLOAT * (x.rows * layer.inputs + active.slots)
        return Work(2 * active.slots * layer.inputs, moved)
    if not active.is_everything or isinstance(x, Mixed):
        return None
    weights = _different(x, layer) * layer.neurons * layer.arrays["weights"].itemsize
    moved = weights + x.indices.nbytes + x.values.nbytes + FLOAT * x.rows * layer.neurons
    return Work(2 * len(x.indices) * layer.neurons, moved)


def learn(layer: Layer, x: Input, active: ActiveSet, want_dx: bool = True) -> Work | None:
    """`Layer.learn`. Dense input: gradients of weights and, behind another layer, inputs, 2 S K each; inputs B K and
    gradients S read, gradients B K written, weights and moments U K read and written. Sparse input and all neurons:
    2 n U for weights, as much for inputs if wanted, whose n gradients are written; ids, values and gradients B U read,
    weights and moments d U read and written."""
    if isinstance(x, Dense):
        products = 1 + (want_dx or not layer.sparse_input)
        moved = 2 * _state(layer, active) + FLOAT * (products * x.rows * layer.inputs + active.slots)
        return Work(2 * products * active.slots * layer.inputs, moved)
    if not active.is_everything or isinstance(x, Mixed):
        return None
    state = 2 * _different(x, layer) * layer.neurons * _state_bytes(layer)
    dx = len(x.indices) if want_dx else 0
    moved = state + x.indices.nbytes + x.values.nbytes + FLOAT * (x.rows * layer.neurons + dx)
    return Work(2 * (len(x.indices) + dx) * layer.neurons, moved)


def softmax_forward(
    layer: Layer, x: Dense, active: ActiveSet, labels: Any, reference: Floats, total: Floats, dx: Floats | None = None,
    kept: Floats | None = None, begin: int = 0, end: int | None = None,
) -> Work:  # fmt: skip
    """`Layer.softmax_forward`, the first pass over some rows: logits, and exponentials times weights, 2 B U K each;
    weights U K and inputs B K read, gradients of inputs B K and, if they are kept, exponentials B U written."""
    some = x.values[begin:end]
    flops, logits = _product(layer, some, active)
    moved = _weights(layer, active) + 2 * FLOAT * len(some) * layer.inputs
    return Work(2 * flops, moved + (logits * layer.kept_bytes if kept is not None else 0))


def softmax_backward(
    layer: Layer, active: ActiveSet, labels: Any, reference: Floats, log_norm: Floats, scale: float, dx: Floats,
    begin: int, end: int,
) -> Work:  # fmt: skip
    """`Layer.softmax_backward`, what is left of gradients of inputs between the passes: B K read and written. The
    labels' share is not counted."""
    return Work((end - begin) * layer.inputs, 2 * FLOAT * (end - begin) * layer.inputs)


def output_step(layer: Layer, x: Dense, active: ActiveSet, kept: Floats | None) -> Work:
    """`Layer.softmax_step`, the second pass, and `Layer.sigmoid_step`: gradients of weights, 2 B U K, and as much for
    logits that were not kept; inputs B K and what was kept, B U, read, weights and moments U K read and written."""
    flops, logits = _product(layer, x.values, active)
    moved = 2 * _state(layer, active) + FLOAT * x.rows * layer.inputs
    return Work(2 * flops, moved) if kept is None else Work(flops, moved + logits * layer.kept_bytes)


def sigmoid_learn(layer: Layer, x: Dense, active: ActiveSet, labels: Any, scale: float, dx: Floats) -> Work:
    """`Layer.sigmoid_learn`: logits and gradients of inputs and of weights, 2 B U K each; inputs B K read, gradients of
    inputs written; weights and moments U K read and written."""
    flops, _ = _product(layer, x.values, active)
    return Work(3 * flops, 2 * _state(layer, active) + 2 * FLOAT * x.rows * layer.inputs)


def sigmoid_backward(
    layer: Layer, x: Dense, active: ActiveSet, labels: Any, scale: float, dx: Floats, kept: Floats, begin: int, end: int
) -> Work:
    """`Layer.sigmoid_backward`, the same without the step, over some rows: logits and gradients of inputs; weights U K
    and inputs B K read, gradients of logits B U and inputs B K written."""
    some = x.values[begin:end]
    flops, logits = _product(layer, some, active)
    return Work(2 * flops, _weights(layer, active) + FLOAT * (2 * len(some) * layer.inputs + logits))


def _product(layer: Layer, x: Floats, active: ActiveSet) -> tuple[int, int]:
    """Operations of one product of batch and active neurons, and its size."""
    size = len(x) * len(active.ids)
    return 2 * size * layer.inputs, size


def _weights(layer: Layer, active: ActiveSet) -> int:
    """Bytes of the active neurons' weights."""
    return len(active.ids) * layer.inputs * layer.arrays["weights"].itemsize


def _state(layer: Layer, active: ActiveSet) -> int:
    """Bytes of the active neurons' weights and their moments."""
    return len(active.ids) * layer.inputs * _state_bytes(layer)


def _state_bytes(layer: Layer) -> int:
    """Bytes of one weight and its moments."""
    names = ("weights", "weights_moment1", "weights_moment2")
    return sum(layer.arrays[name].itemsize for name in names if name in layer.arrays)


def _different(x: Csr, layer: Layer) -> int:
    """How many different inputs the rows have."""
    seen = np.zeros(layer.inputs, np.bool_)  # faster than np.unique
    seen[x.indices] = True
    return int(np.count_nonzero(seen))
