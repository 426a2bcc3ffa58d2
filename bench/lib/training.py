"""dslide trained on the synthetic data: options, metrics, and functions that are called in processes of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.lib.sections import Metric
from bench.lib.workload import BATCH, NEGATIVES, NETWORK, Batch, arrays_of, batches, read_data, timed_training
from dslide import Config, Trainer
from dslide.data import SparseRows
from dslide.training.metrics import Evaluation

SPEED = Metric("samples_per_second", "samples/s")
ACTIVE = Metric("active", "active outputs")
MEMORY = [
    Metric("peak_gigabytes", "peak memory, GB", ".2f"),
    Metric("state_gigabytes", "parameters and moments, GB", ".2f"),
    Metric("peak_over_state", "ratio", ".2f"),
]
PRECISION = Metric("p_at_1", "P@1", ".3f")
SECONDS = Metric("seconds", "seconds", ",.1f")
RANDOM: dict[str, Any] = {"output": "random", "random_negatives": NEGATIVES}
BF16: dict[str, dict[str, Any]] = {  # by name
    "bf16 products": {"products": "bf16"},
    "bf16 moments": {"moments": "bf16"},
    "bf16 storage": {"weights": "bf16", "moments": "bf16"},
    "all bf16": {"weights": "bf16", "moments": "bf16", "products": "bf16"},
}


def train(
    folder: str, threads: int, seconds: float, batch_size: int, seed: int, labels: int = 0, **options: Any
) -> dict[str, float]:
    """Speed and memory of training with these options; `labels`: the rows' labels are mapped to so many."""
    own = {"threads": threads, "batch_size": batch_size, "seed": seed}
    return timed_trainer(folder, seconds, labels, Config(**NETWORK | own | options))[1]


def timed_trainer(folder: str, seconds: float, labels: int, config: Config) -> tuple[Trainer, dict[str, float]]:
    """A trainer after so many seconds, with speed and memory."""
    data = read_data(folder)
    work = batches(data, config.batch_size, config.seed)
    if labels:
        work = [Batch(batch.x, map_labels(batch.y, labels)) for batch in work]
    trainer = Trainer(config, data.features, labels or data.labels)
    return trainer, timed_training(
        lambda batch: trainer.train_batch(batch.x, batch.y, 0).active, work, seconds, lambda: arrays_of(trainer)
    )


def map_labels(y: SparseRows, labels: int) -> SparseRows:
    """The rows with their labels mapped to another number of labels: evenly spaced over more, or modulo fewer."""
    mapped = y.indices.astype(np.int64) * max(1, labels // y.columns) % labels
    rows = np.repeat(np.arange(len(y)), np.diff(y.indptr))
    pairs = np.unique(rows * labels + mapped)  # each label once in a row, ascending
    indptr = np.searchsorted(pairs, np.arange(len(y) + 1) * labels).astype(np.int64)
    return SparseRows(indptr, (pairs % labels).astype(np.int32), np.ones(len(pairs), np.float32), labels)


def fit(folder: str, threads: int, epochs: int, seed: int, **options: Any) -> dict[str, float]:
    """Trains for some epochs with these options; seconds, and P@1 on test rows."""
    data, test = read_data(folder), read_data(folder, "test")
    fixed = NETWORK | {"threads": threads, "batch_size": BATCH, "epochs": epochs, "seed": seed}
    trainer = Trainer(Config(**(fixed | options)), data.features, data.labels)
    result, evaluation = trainer.fit(data), Evaluation(ks=(1,))
    evaluation.update(trainer.network.predict_topk(test.x, 1)[0], test.y)
    return {"p_at_1": evaluation.result()["p_at_1"], "seconds": result.seconds}
