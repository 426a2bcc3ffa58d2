"""One rank of dslide in an experiment, with its shard of the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.lib.workload import NETWORK, arrays_of, batches
from dslide import Config, Trainer
from dslide.comm import job
from dslide.data import Dataset
from dslide.training.metrics import Evaluation


class DslideRank:
    """Trains with these options on one thread; all ranks work on the same batch."""

    def __init__(self, data: Dataset, seed: int, batch_size: int, **options: Any) -> None:
        self._comm = job()
        self.rank = self._comm.rank
        config = Config(**NETWORK | options, threads=1, batch_size=batch_size, seed=seed)
        self._trainer = Trainer(config, data.features, data.labels, comm=self._comm)
        self._work = batches(data, batch_size, seed)

    def step(self) -> int:
        batch = self._work[self._trainer.step % len(self._work)]
        self._trainer.train_batch(batch.x, batch.y, total_steps=0)
        return len(batch.x)

    def gather(self, value: float) -> list[float]:
        return self._comm.gather_objects("results", value)

    def waiting(self) -> Callable[[float], float]:
        """The share by dslide's own clocks: time in which the rank waited for messages."""
        waited, steps = self._comm.wait_seconds, self._trainer.step
        return lambda seconds: (self._comm.wait_seconds - waited) / ((self._trainer.step - steps) * seconds)

    def state(self) -> list[np.ndarray]:
        return arrays_of(self._trainer)

    def precision(self, test: Dataset) -> float:
        evaluation = Evaluation(ks=(1,))
        evaluation.update(self._trainer.network.predict_topk(test.x, 1)[0], test.y)
        return evaluation.result()["p_at_1"]
