"""The first layer over dense rows, and whole training steps, beside the same rows as sparse ones:

    python -m bench.dense_layer [--threads 2] [--rounds 5]

Prints the speed of the forward product, and of the backward product with Adagrad's step, as shares of the multiply-adds
that the cores do in registers; the time to gather rows of float16 and float32; and rows/s of training, for networks of
10,000 labels with softmax over the labels of the batch and 2,048 random negatives. Medians of rounds, in which all are
measured in turn; in parentheses the best.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from dslide import Config
from dslide.data import Dataset, DenseRows, SparseRows
from dslide.model.activations import Dense
from dslide.model.active_sets import all_neurons
from dslide.model.defaults import resolve
from dslide.model.layer import Layer
from dslide.model.layout import LayerSpec
from dslide.training.trainer import Trainer
from dslide.util.arrays import aligned_zeros, padded
from dslide.util.threads import measure_speeds, use_threads

SHAPES = [(384, 256, 256), (384, 256, 1024), (768, 512, 256), (1536, 512, 256)]  # features, neurons, rows
LABELS, ROWS, STEPS = 10_000, 8192, 20


class Timed(NamedTuple):
    """What is measured: a call, and how much of something it does."""

    call: Callable[[], object]
    amount: float

    def rate(self, least: float = 0.02) -> float:
        """The amount per second, over at least so many seconds."""
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < least:
            self.call()
            calls += 1
        return self.amount * calls / spent


def layer_calls(features: int, neurons: int, rows: int) -> dict[str, Timed]:
    """Forward and backward of a layer, in GFLOP, and the gathering of its rows, in rows."""
    layer = Layer(LayerSpec(0, features, neurons, True, 1.0, False, None), Config(), 0, scale=0.1)
    layer.optimizer.rate = 0.01
    random, active = np.random.default_rng(0), all_neurons(neurons, rows)
    stored = [DenseRows(random.standard_normal((ROWS, features)).astype(t)) for t in (np.float16, np.float32)]
    x, dz = Dense(stored[1].part(0, rows).matrix()), aligned_zeros(rows, padded(neurons))
    dz[:, :neurons] = 1e-3 * random.standard_normal((rows, neurons))
    ids, work = random.integers(0, ROWS, rows), 2e-9 * rows * features * neurons
    return {
        "forward": Timed(lambda: layer.forward(x, active), work),
        "backward and step": Timed(lambda: layer.learn(x, active, dz, want_dx=False), work),
        "gather float16": Timed(lambda: stored[0].matrix(ids), rows),
        "gather float32": Timed(lambda: stored[1].matrix(ids), rows),
    }


def training_calls(features: int, threads: int) -> dict[str, Timed]:
    """Some steps of training on dense rows, and on the same as sparse ones."""
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, features)).astype(np.float32)
    y = SparseRows.from_scipy(sp.csr_matrix((np.ones(ROWS), random.integers(0, LABELS, ROWS), np.arange(ROWS + 1)),
                                            (ROWS, LABELS)))  # fmt: skip
    calls = {}
    for name, hidden, rows in (
        ("dense, hidden 256", (256,), DenseRows(x)),
        ("sparse, hidden 256", (256,), SparseRows.from_scipy(sp.csr_matrix(x))),
        ("dense, no hidden layer", (), DenseRows(x)),
    ):
        asked = Config(hidden=hidden, start="random", prior_labels=0, output="random", threads=threads, validation=0)
        data = Dataset(rows, y)
        trainer = Trainer(resolve(asked, LABELS, data), features, LABELS)
        order = random.permutation(ROWS)

        def steps(trainer: Trainer = trainer, data: Dataset = data, order: np.ndarray = order) -> None:
            size = trainer.config.batch_size
            for step in range(STEPS):
                trainer.train_batch(*data.batch(order[step * size : (step + 1) * size]), 0)

        calls[name] = Timed(steps, STEPS * trainer.config.batch_size)
    return calls


def medians(calls: dict[str, Timed], rounds: int, unit: float = 1.0) -> dict[str, tuple[float, float]]:
    """Median and best rate of each, over rounds in which all are measured in turn, after one that is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, timed in calls.items():
            rate = timed.rate()
            if number:
                rates[name].append(rate / unit)
    return {name: (statistics.median(found), max(found)) for name, found in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    use_threads(options.threads)
    peak = max(measure_speeds(options.threads).gflops for _ in range(3))
    print(f"peak: {peak:.0f} GFLOP/s on {options.threads} threads")
    for features, neurons, rows in SHAPES:
        found = medians(layer_calls(features, neurons, rows), options.rounds)
        products = ", ".join(f"{name} {found[name][0] / peak:.0%} ({found[name][1] / peak:.0%})"
                             for name in ("forward", "backward and step"))  # fmt: skip
        together = [2 / (1 / found["forward"][k] + 1 / found["backward and step"][k]) / peak for k in (0, 1)]
        gathered = ", ".join(f"{name} {found[name][0] / 1e6:.1f} M rows/s" for name in list(found)[2:])
        print(f"{features} features, {neurons} neurons, {rows} rows: {products}, both {together[0]:.0%} "
              f"({together[1]:.0%}) of peak; {gathered}")  # fmt: skip
    for name, (median, best) in medians(training_calls(384, options.threads), options.rounds).items():
        print(f"training, 384 features, {LABELS:,} labels, {name}: {median:,.0f} rows/s ({best:,.0f})")


if __name__ == "__main__":
    main()
