"""Training speed as the output layer grows and active sets stay as they are."""

from __future__ import annotations

import numpy as np

from dslide import Config, Trainer
from dslide.data import SparseRows

from .plan import Plan
from .report import Comparison, Section
from .runs import System
from .throughput import ACTIVE, MEMORY, RANDOM, SPEED, timed_dslide
from .workload import BATCH, HIDDEN, NETWORK, Batch, batches, make_data, read_data


def train(folder: str, threads: int, seconds: float, labels: int, seed: int) -> dict[str, float]:
    """The same rows, with another number of labels."""
    data = read_data(folder)
    config = Config(**NETWORK, threads=threads, batch_size=BATCH, seed=seed, **RANDOM)
    work = [Batch(batch.x, moved(batch.y, labels)) for batch in batches(data, BATCH, seed)]
    return timed_dslide(Trainer(config, data.features, labels), work, seconds)


def moved(y: SparseRows, labels: int) -> SparseRows:
    """The rows' labels folded into, or spread over, another number of them."""
    spread = y.indices.astype(np.int64) * max(1, labels // y.columns) % labels
    rows = np.repeat(np.arange(len(y)), np.diff(y.indptr))
    pairs = np.unique(rows * labels + spread)  # each label once in a row, ascending
    indptr = np.searchsorted(pairs, np.arange(len(y) + 1) * labels).astype(np.int64)
    return SparseRows(indptr, (pairs % labels).astype(np.int32), np.ones(len(pairs), np.float32), labels)


def section(plan: Plan) -> Section:
    """A row for each number of labels."""
    folder = str(make_data(plan.data, plan.speed))
    systems = []
    for labels in plan.growth:
        arguments = {"folder": folder, "threads": plan.threads, "seconds": plan.seconds, "labels": labels}
        state = 12 * HIDDEN * (labels + plan.speed.features)  # weights and two moments
        systems.append(System(f"{labels:,} labels", f"{__name__}:train", arguments, least_bytes=state * 4 // 3))
    return Section(
        "Growth",
        f"The same rows with their labels spread over more outputs: {plan.speed.features:,} features, hidden {HIDDEN}, "
        f"batch {BATCH}, active are the labels of the batch and 4,096 random outputs.",
        systems,
        [SPEED, ACTIVE, *MEMORY[:2]],
        [Comparison(larger, systems[0], SPEED) for larger in systems[1:]],
    )
