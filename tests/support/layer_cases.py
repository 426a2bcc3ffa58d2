"""Layers, inputs, active sets and labels of any shape, for tests of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dslide import _core
from dslide.config import Config
from dslide.model.activations import Dense
from dslide.model.layer import Layer
from dslide.model.layout import LayerSpec
from dslide.util.arrays import aligned_zeros, padded
from dslide.util.csr import Csr

KINDS = ["everything", "shared", "row"]


def make_layer(inputs: int, neurons: int, sparse: bool, config: Config, seed: int = 0) -> Layer:
    """A layer with weights and biases of about 1 / sqrt(inputs)."""
    spec = LayerSpec(0, inputs, neurons, sparse, 1.0, False, None)
    layer = Layer(spec, config, seed, scale=1 / np.sqrt(inputs))
    layer.optimizer.rate = config.learning_rate
    rng = np.random.default_rng(seed)
    layer.arrays["bias"][:] = 0.3 * rng.standard_normal((neurons, 1))
    return layer


def make_active(kind: str, neurons: int, rows: int, seed: int, labels: Any = None) -> Any:
    """An active set of the given kind over about half of the neurons, the labels always among them."""
    if kind == "everything":
        return _core.ActiveSet.everything(neurons, rows)
    if labels is None:
        labels = np.zeros(rows + 1, np.int64), np.zeros(0, np.int32)
    negatives = max(1, neurons // 2)
    return _core.ActiveSet.sampled(kind == "row", neurons, *labels, None, None, negatives, seed, True)


def dense_input(rows: int, inputs: int, seed: int) -> tuple[Dense, np.ndarray]:
    """Padded activations, some rows all zero, and the same as a float64 matrix."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    x[rng.random(rows) < 0.2] = 0
    values = aligned_zeros(rows, padded(inputs))
    values[:, :inputs] = x
    return Dense(values), x.astype(np.float64)


def sparse_input(rows: int, inputs: int, seed: int) -> tuple[Csr, np.ndarray, np.ndarray]:
    """Sparse rows, some empty, some stored values zero; the same as a matrix, and which elements are stored."""
    rng = np.random.default_rng(seed)
    present = rng.random((rows, inputs)) < min(0.5, 8 / inputs)
    present[rng.random(rows) < 0.2] = False
    x = np.where(present, rng.standard_normal((rows, inputs)), 0).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = 0
    at = np.nonzero(present)
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return Csr(offsets, at[1].astype(np.int32), x[at]), x.astype(np.float64), present


def any_input(sparse: bool, rows: int, inputs: int, seed: int) -> tuple[Dense | Csr, np.ndarray, np.ndarray]:
    """Activations of either kind, the same as a float64 matrix, and which of its elements are there."""
    if sparse:
        return sparse_input(rows, inputs, seed)
    x, matrix = dense_input(rows, inputs, seed)
    return x, matrix, np.ones_like(matrix, bool)


@dataclass(frozen=True, eq=False)
class Targets(Csr):
    """Labels in the form layers take them, and as a (rows, neurons) matrix."""

    matrix: np.ndarray


def make_targets(rows: int, neurons: int, seed: int, softmax: bool) -> Targets:
    """Up to three labels a row; with softmax at least one, their targets summing to 1."""
    rng = np.random.default_rng(seed)
    matrix = np.zeros((rows, neurons))
    for row in matrix:
        ids = rng.choice(neurons, min(neurons, int(rng.integers(1 if softmax else 0, 4))), replace=False)
        row[ids] = rng.uniform(0.5, 2, len(ids))
        if softmax:
            row /= row.sum()
    matrix = matrix.astype(np.float32).astype(np.float64)
    at = np.nonzero(matrix)
    offsets = np.concatenate([[0], np.cumsum((matrix > 0).sum(axis=1))]).astype(np.int64)
    return Targets(offsets, at[1].astype(np.int32), matrix[at].astype(np.float32), matrix)


def softmax_learn(
    layer: Layer, x: Dense, active: Any, labels: Any, dx: np.ndarray, scale: float, kept: np.ndarray | None = None,
    cut: int = 0,
) -> tuple[bool, float, np.ndarray]:  # fmt: skip
    """A step along softmax's gradients, the batch split before row `cut`: whether all were finite, the loss and the
    logarithms of the normalisers; dx is set."""
    reference, total = np.full((2, x.rows), np.nan, np.float32)
    parts = [(0, cut), (cut, x.rows)] if 0 < cut < x.rows else [(0, x.rows)]
    for begin, end in parts:
        layer.native.softmax_forward(x.values, active, labels, reference, total, dx, kept, begin, end)
    log_norm = reference + np.log(total)
    loss = sum(
        layer.native.softmax_backward(active, labels, reference, log_norm, scale, dx, begin, end)
        for begin, end in parts
    )
    finite = layer.native.softmax_step(x.values, active, labels, log_norm, scale, layer.optimizer, kept)
    return finite, loss, log_norm
