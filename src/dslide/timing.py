"""How long training will take, from timing a few steps of a smaller network of the same kind, on this machine or on all
ranks of a job."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from .activations import Sparse
from .comm import Communicator, solo
from .config import Config
from .labels import Labels
from .network import Network
from .sampler import resolve_output
from .threads import use_threads
from .trainer import STOP

MOST_PARAMETERS = 16_000_000  # of the smaller network's first and last layer each, on each rank
LEAST_SECONDS, LEAST_STEPS = 1.0, 4


@dataclass(frozen=True)
class StepTime:
    """One training step, in seconds."""

    compute: float
    waiting: float  # for other ranks, beyond what was computed meanwhile

    @property
    def total(self) -> float:
        return self.compute + self.waiting


def seconds_per_step(
    config: Config, features: int, labels: int, features_per_row: float = 75, labels_per_row: float = 5
) -> float:
    """Time of one training step on this machine, measured for about a second."""
    return time_step(config, features, labels, features_per_row, labels_per_row).total


def time_step(
    config: Config,
    features: int,
    labels: int,
    features_per_row: float = 75,
    labels_per_row: float = 5,
    comm: Communicator | None = None,
) -> StepTime:
    """Times one training step for about a second, on all ranks together.

    Features and labels are cut down to what fits in a moment; a step's cost depends on them only through caches, except
    that a full output layer's grows in proportion to the labels. What ranks send does not depend on them.
    """
    comm = comm or solo()
    use_threads(config.threads)
    small_features = min(features, max(256, comm.size * MOST_PARAMETERS // config.hidden[0]))
    small_labels = min(labels, max(256, comm.size * MOST_PARAMETERS // config.hidden[-1]))
    mode = resolve_output(config, labels)
    network = Network(config.replace(output=mode), small_features, small_labels, comm=comm)
    random = np.random.default_rng(0)

    def lists(columns: int, mean: float) -> tuple[np.ndarray, np.ndarray]:
        each = max(1, min(columns, round(mean)))
        ids = np.sort((random.random((config.batch_size, each)) * columns).astype(np.int32), axis=1)
        ids = np.minimum(ids + np.arange(each, dtype=np.int32), columns - 1)
        keep = np.diff(ids, axis=1, prepend=-1) > 0  # each at most once in a row
        return np.concatenate([[0], np.cumsum(keep.sum(axis=1))]).astype(np.int64), ids[keep]

    times: list[tuple[float, float]] = []  # of steps, and waiting in them
    over = False
    while not over:
        offsets, ids = lists(small_features, features_per_row)
        x = Sparse(offsets, ids, np.full(len(ids), 0.1, np.float32))
        offsets, ids = lists(small_labels, labels_per_row)
        y = Labels(offsets, ids, np.full(len(ids), 1 / labels_per_row, np.float32))
        enough = sum(seconds for seconds, _ in times[1:]) >= LEAST_SECONDS and len(times) >= LEAST_STEPS
        start, waited = time.perf_counter(), comm.wait_seconds
        result = network.train_step(x, y, len(times), 1e-4, flags=STOP if enough else 0)
        times.append((time.perf_counter() - start, comm.wait_seconds - waited))
        over = bool(result.any_flags & STOP)  # on all ranks after the same step
    total, waiting = np.median(times[1:], axis=0)  # the first step builds the hash tables
    growth = labels / small_labels if mode == "full" else 1.0
    return StepTime(float(total - waiting) * growth, float(waiting))
