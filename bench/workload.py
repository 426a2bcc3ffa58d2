"""What every system trains on, and how a system is timed."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dslide.data import Dataset, SparseRows, load, synthesize

FEATURES, LABELS, HIDDEN = 135_909, 670_091, 128  # Amazon-670K, and the hidden layer of the SLIDE papers
ROWS, SEED = 20_000, 1
WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Batch:
    """Rows of the data: features and labels."""

    x: SparseRows
    y: SparseRows


def make_data(folder: Path) -> None:
    """Writes the data, once."""
    if not folder.exists():
        synthesize(folder, ROWS, FEATURES, LABELS, 2000, SEED)


def read_data(folder: Path) -> Dataset:
    return load(folder / "train.txt")


def batches(data: Dataset, size: int) -> list[Batch]:
    """An epoch of batches in random order, cut beforehand so that no system is timed for it."""
    order = np.random.default_rng(SEED).permutation(len(data))
    cuts = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
    return [Batch(data.x.take(rows), data.y.take(rows)) for rows in cuts]


def timed(step: Callable[[Batch], None], work: list[Batch], seconds: float) -> dict[str, float]:
    """Steps through the batches for at least so many seconds, after some that are not counted."""
    for batch in work[:WARM_UP_STEPS]:
        step(batch)
    start, rows, i = time.perf_counter(), 0, WARM_UP_STEPS
    while (passed := time.perf_counter() - start) < seconds:
        batch = work[i % len(work)]
        step(batch)
        rows, i = rows + len(batch.x), i + 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"samples_per_second": rows / passed, "steps": i - WARM_UP_STEPS, "peak_rss_bytes": peak}
