"""Layers and a small training run with the kernels that DSLIDE_ISA names: `python -m support.run_at_level OUT.npz`.

A process of its own, because the level is chosen once per process; core/test_levels.py compares the results.
"""

from __future__ import annotations

import sys

import numpy as np
from reference.network import to_slots
from support.layer_cases import KINDS, dense_input, make_active, make_layer, make_targets, softmax_learn, sparse_input
from support.plain import PLAIN

from dslide import _core
from dslide.config import Config
from dslide.data import Dataset, SparseRows
from dslide.training.trainer import Callback, Trainer

SHAPES = [(1, 1, 1), (97, 65, 17), (5, 130, 130), (3, 64, 16)]  # rows, neurons, inputs
CONFIG = Config(optimizer="adam", learning_rate=0.05, weight_decay=0.1, epsilon=1e-2)


def layer_results() -> dict[str, np.ndarray]:
    results: dict[str, np.ndarray] = {}
    for rows, neurons, inputs in SHAPES:
        for kind in KINDS:
            for optimizer in ("adam", "adagrad", "sgd"):
                for sparse in (False, True):
                    config = CONFIG.replace(optimizer=optimizer)
                    name = f"{rows}-{neurons}-{inputs}-{kind}-{optimizer}-{'sparse' if sparse else 'dense'}"
                    results |= learn_some(name, config, rows, neurons, inputs, kind, sparse)
    return results


def learn_some(name, config, rows, neurons, inputs, kind, sparse) -> dict[str, np.ndarray]:
    """Two steps along given gradients, and on a dense layer two along each loss's."""
    layer, results = make_layer(inputs, neurons, sparse, config, 1), {}
    for step in range(2):
        x = sparse_input(rows, inputs, step)[0] if sparse else dense_input(rows, inputs, step)[0]
        softmax, sigmoid = make_targets(rows, neurons, step, True), make_targets(rows, neurons, step, False)
        active = make_active(kind, neurons, rows, step, (softmax.indptr, softmax.indices))
        results[f"{name}-z{step}"] = layer.forward(x, active)
        dz = to_slots(active, np.random.default_rng(step).standard_normal((rows, neurons)) / rows)
        _, dx = layer.learn(x, active, dz.reshape(rows if active.is_everything else 1, -1))
        results[f"{name}-dx{step}"] = dx
        if sparse or kind == "row":
            continue
        labels, dx = _core.FoundLabels(active, softmax.indptr, softmax.indices, softmax.values), np.empty_like(x.values)
        kept = np.empty(layer.native.kept_size(active), np.float32) if step else None
        _, loss, log_norm = softmax_learn(layer, x, active, labels, dx, 0.5, kept)
        results |= {f"{name}-norm{step}": log_norm, f"{name}-softmax{step}": dx, f"{name}-loss{step}": np.array(loss)}
        labels, dx = _core.FoundLabels(active, sigmoid.indptr, sigmoid.indices, sigmoid.values), np.empty_like(x.values)
        _, loss = layer.native.sigmoid_learn(x.values, active, labels, 0.5, dx, layer.optimizer)
        results |= {f"{name}-sigmoid{step}": dx, f"{name}-no{step}": np.array(loss)}
    return results | {f"{name}-{key}": value for key, value in layer.arrays.items()}


class Losses(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, trainer, info) -> None:
        self.losses.append(info.loss)


def train(config: Config) -> np.ndarray:
    """Losses of a small run over random data."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((150, 40)) * (rng.random((150, 40)) < 0.2)
    y = np.eye(30)[np.abs(x).argmax(axis=1) % 30]
    data = Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y))
    losses = Losses()
    Trainer(config, 40, 30, callbacks=[losses]).fit(data)
    return np.array(losses.losses)


def main() -> None:
    results = layer_results()
    for loss in ("softmax", "sigmoid"):
        options = {"hidden": (33,), "loss": loss, "epochs": 6, "batch_size": 50, "epsilon": 1e-4, "threads": 1}
        config = Config(**PLAIN | options)
        results[f"training-{loss}"] = train(config.replace(output="full"))
        # random and not lsh: a rounding error may move a neuron to another bucket
        results[f"training-{loss}-sampled"] = train(
            config.replace(output="random", active_sets="row", random_negatives=10)
        )
    options = {"hidden": (33,), "epochs": 6, "batch_size": 50, "epsilon": 1e-4, "threads": 1, "products": "bf16"}
    results["training-bf16"] = train(Config(**PLAIN | options))
    np.savez(sys.argv[1], isa=np.array(_core.isa()), **results)


if __name__ == "__main__":
    main()
