"""The data that systems train on, and how a system is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib.measuring import log
from dslide import Trainer
from dslide.data import Dataset, SparseRows, load, synthesize
from dslide.util.memory import peak_rss_bytes

HIDDEN = 128  # neurons of the hidden layer, as in the SLIDE papers
RATE, BATCH = 0.01, 256
# The network that PyTorch can train too: no label prior, no dropout, Adam.
NETWORK: dict[str, Any] = {
    "output": "lsh",
    "hidden": (HIDDEN,), "prior_labels": 0, "dropout_input": 0.0, "dropout_hidden": 0.0, "optimizer": "adam",
    "learning_rate": RATE,
}  # fmt: skip
NEGATIVES = 4096  # random ones of a batch, where they are sampled
WARM_UP_STEPS = 3  # fewer if they take longer than the time measured
SEED = 1  # of the data


@dataclass(frozen=True)
class Shape:
    """The size of a synthetic dataset."""

    rows: int
    features: int
    labels: int
    test_rows: int = 2000


AMAZON = Shape(20_000, 135_909, 670_091)  # features and labels of Amazon-670K
SMALL = Shape(20_000, 20_000, 30_000)  # small enough for full softmax
TINY = Shape(2000, 3000, 10_000, 200)
FEATURES, LABELS = AMAZON.features, AMAZON.labels
EPOCH_ROWS = 490_449  # in Amazon-670K's training set (arXiv 1903.03129, section 5)


@dataclass(frozen=True)
class Batch:
    """Some rows: features and labels."""

    x: SparseRows
    y: SparseRows


def make_data(root: Path, shape: Shape) -> Path:
    """Writes train.txt and test.txt of this shape unless they exist; returns their folder."""
    folder = root / f"{shape.rows}x{shape.features}x{shape.labels}"
    if not folder.exists():
        log(f"making data: {shape.rows:,} rows, {shape.labels:,} labels")
        root.mkdir(parents=True, exist_ok=True)
        synthesize(folder, shape.rows, shape.features, shape.labels, shape.test_rows, SEED)
    return folder.resolve()


def read_data(folder: str | Path, part: str = "train") -> Dataset:
    return load(Path(folder) / f"{part}.txt")


def batches(data: Dataset, size: int, seed: int) -> list[Batch]:
    """An epoch of whole batches in random order, made in advance so that it is not timed."""
    order = np.random.default_rng(seed).permutation(len(data))
    cuts = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
    return [Batch(data.x.take(rows), data.y.take(rows)) for rows in cuts]


def write_to(arrays: Iterable[np.ndarray]) -> None:
    """Writes to all elements: memory is allocated on the first write, which a long run pays for only once."""
    for array in arrays:
        array += 0


def arrays_of(trainer: Trainer) -> list[np.ndarray]:
    """Parameters and moments of dslide's network, not copied."""
    return [array for layer in trainer.network.layers for array in layer.arrays.values()]


def warm_up(trainer: Trainer, work: list[Batch]) -> None:
    """Untimed first steps, and a write to all parameters and moments."""
    for batch in work[:WARM_UP_STEPS]:
        trainer.train_batch(batch.x, batch.y, 0)
    write_to(arrays_of(trainer))


def timed_training(
    step: Callable[[Batch], float], work: list[Batch], seconds: float, state: Callable[[], list[np.ndarray]]
) -> dict[str, float]:
    """Trains on the batches for at least so many seconds, after untimed steps. A step returns the number of active
    outputs, `state` the arrays of parameters and moments."""
    start, i = time.perf_counter(), 0
    while i < WARM_UP_STEPS and time.perf_counter() - start < seconds:
        step(work[i % len(work)])
        i += 1
    arrays = state()
    write_to(arrays)
    start, rows, active = time.perf_counter(), 0, []
    while (passed := time.perf_counter() - start) < seconds:
        batch = work[i % len(work)]
        active.append(step(batch))
        rows, i = rows + len(batch.x), i + 1
    peak, size = peak_rss_bytes(), sum(array.nbytes for array in arrays)
    return {
        "samples_per_second": rows / passed,
        "active": float(np.mean(active)),
        "peak_gigabytes": peak / 1e9,
        "state_gigabytes": size / 1e9,
        "peak_over_state": peak / size,
    }


def timed_calls(call: Callable[[], object], seconds: float) -> float:
    """Mean seconds of a call, after an untimed one."""
    call()
    start, calls = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds:
        call()
        calls += 1
    return passed / calls


def timed_rebuild(trainer: Trainer) -> float:
    """Seconds of a rebuild of the output layer's hash tables when every neuron has changed; 0 without tables."""
    sampler = trainer.network.output.lsh
    if sampler is None:
        return 0.0
    sampler.moved[:] = True
    start = time.perf_counter()
    trainer.network.rebuild_tables()
    return time.perf_counter() - start
