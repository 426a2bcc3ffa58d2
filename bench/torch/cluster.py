"""The systems on emulated nodes with links of limited speed (needs root): a data-parallel encoder, and an output layer
that is split over the nodes, or data-parallel too."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.cluster.training import speed_of
from bench.lib.data_parallel import exchange_share, gathered
from bench.lib.pytorch import use_torch
from bench.torch.systems import BATCH, SPEED_ROWS, Model, make_vectors
from dslide.comm import launched_as
from dslide.data import Dataset

Tensor = torch.Tensor


class Losses(torch.nn.Module):
    """A model whose forward is its loss, as DistributedDataParallel wants it. The output layer of dslide has no
    parameters, so that only the encoder's gradients are exchanged by it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.output = model.encoder, torch.nn.ModuleList(model.output.modules)
        self._loss = model.loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self._loss(x, labels)


class TorchRank:
    """One node: batches of its own."""

    def __init__(self, kind: str, labels: int, seed: int, options: dict[str, Any]) -> None:
        use_torch(1, seed)
        self.rank, self._size = launched_as()
        address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        dist.init_process_group("gloo", init_method=address, rank=self.rank, world_size=self._size)
        self._x, self._labels = make_vectors(labels, SPEED_ROWS, seed + self.rank)
        counts = torch.bincount(self._labels, minlength=labels)
        dist.all_reduce(counts)
        self._model = Model(kind, labels, 1e-3, counts, options, words=False)
        self._parallel = DistributedDataParallel(Losses(self._model), init_sync=False, gradient_as_bucket_view=True)
        self._sharded, self._steps = kind == "dslide", 0

    def step(self) -> int:
        at = self._steps * BATCH % (SPEED_ROWS - BATCH)
        self._model.step(self._x[at : at + BATCH], self._labels[at : at + BATCH], self._parallel)
        self._steps += 1
        return BATCH * self._size

    def gather(self, value: float) -> list[float]:
        return gathered(value)

    def waiting(self) -> Callable[[float], float]:
        """The share of gradients' exchange in a step. An output layer that is split can't do without its own, which is
        not counted."""

        def share(seconds: float) -> float:
            return 0.0 if self._sharded else exchange_share(self._parallel, self.step, seconds)

        return share

    def state(self) -> list[np.ndarray]:
        return []

    def precision(self, test: Dataset) -> float:
        raise NotImplementedError("only speed is measured")


def speed(
    lab: str, kind: str, labels: int, rate: str, seconds: float, least_steps: int, seed: int, **options: Any
) -> dict[str, float]:
    """Speed, bytes and memory on all nodes of a lab, one thread on each."""
    return speed_of(TorchRank(kind, labels, seed, options), lab, rate, seconds, least_steps)
