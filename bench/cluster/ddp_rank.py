"""One rank of PyTorch's DistributedDataParallel over gloo in an experiment, with a copy of the whole network.

All ranks begin with the same weights, from the seed. Each trains on its own batches, and they exchange gradients: dense
ones of all parameters, or with sampled outputs sparse ones, which gloo gathers from all ranks and sums.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.lib.data_parallel import exchange_share, gathered
from bench.lib.pytorch import gradient_step, state_of, use_torch
from bench.lib.workload import HIDDEN, RATE, Batch, batches
from dslide.comm import launched_as
from dslide.data import Dataset, SparseRows
from dslide.model.network import FIRST_SCALE
from dslide.training.metrics import Evaluation

ROWS_AT_A_TIME = 128  # in prediction


class Network(torch.nn.Module):
    """The network that dslide trains, with the same initial scales: sparse features, a linear hidden layer, outputs."""

    def __init__(self, features: int, labels: int, sparse: bool) -> None:
        super().__init__()
        make = torch.nn.utils.skip_init
        self.first = make(torch.nn.EmbeddingBag, features, HIDDEN, mode="sum", sparse=sparse)
        self.output = make(torch.nn.Embedding, labels, HIDDEN, sparse=sparse)
        self.bias = make(torch.nn.Embedding, labels, 1, sparse=sparse)
        torch.nn.init.normal_(self.first.weight, std=FIRST_SCALE)
        torch.nn.init.normal_(self.output.weight, std=HIDDEN**-0.5)
        torch.nn.init.zeros_(self.bias.weight)

    def forward(self, x: SparseRows, chosen: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of the chosen labels, or of all: (rows, labels)."""
        ids, offsets = torch.from_numpy(x.indices.astype(np.int64)), torch.from_numpy(x.indptr[:-1])
        hidden = self.first(ids, offsets, per_sample_weights=torch.from_numpy(x.values))
        parts = [self.output, self.bias]
        weights, bias = (part.weight if chosen is None else part(chosen) for part in parts)
        return torch.nn.functional.linear(hidden, weights, bias[:, 0])


class SoftmaxLoss(torch.autograd.Function):
    """Mean cross-entropy with weighted labels at (row, column), the weights of a row summing to 1. Equal to PyTorch's
    with a dense target matrix, but faster and in half the memory, because there is no such matrix."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, rows: Any, columns: Any, weights: torch.Tensor) -> torch.Tensor:
        gradient = torch.log_softmax(logits, 1)
        loss = -(gradient[rows, columns] * weights).sum() / len(logits)
        gradient.exp_()
        gradient[rows, columns] -= weights  # each label is once in a row
        ctx.gradient = gradient.div_(len(logits))
        return loss

    @staticmethod
    def backward(ctx: Any, *above: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return ctx.gradient.mul_(above[0]), None, None, None


class DdpRank:
    """Trains on one thread with all outputs, or with the batch's labels and so many random `negatives`, the same on all
    ranks, so that sums of gradients have fewer rows."""

    def __init__(self, data: Dataset, seed: int, batch_size: int, negatives: int = 0) -> None:
        use_torch(threads=1, seed=seed)
        self.rank, self._size = launched_as()
        address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        dist.init_process_group("gloo", init_method=address, rank=self.rank, world_size=self._size)
        self._network = Network(data.features, data.labels, sparse=negatives > 0)
        # Weights are equal already; sending them at the start would take a minute at 100 Mbit/s.
        self._parallel = DistributedDataParallel(self._network, init_sync=False, gradient_as_bucket_view=True)
        parameters = list(self._network.parameters())
        sparse, dense = torch.optim.SparseAdam, partial(torch.optim.Adam, fused=True)
        self._optimizer = (sparse if negatives else dense)(parameters, lr=RATE)
        self._work = batches(data, batch_size, seed)
        self._labels, self._negatives, self._seed, self._steps = data.labels, negatives, seed, 0

    def step(self) -> int:
        batch = self._work[(self._steps * self._size + self.rank) % len(self._work)]
        chosen, columns = self._chosen(batch)
        counts = np.diff(batch.y.indptr)
        rows, weights = np.repeat(np.arange(len(counts)), counts), np.repeat(1 / np.maximum(counts, 1), counts)
        logits = self._parallel(batch.x, chosen)
        labels = (torch.from_numpy(part) for part in (rows, columns, weights.astype(np.float32)))
        gradient_step(self._optimizer, SoftmaxLoss.apply(logits, *labels))
        self._steps += 1
        return len(batch.x) * self._size

    def _chosen(self, batch: Batch) -> tuple[torch.Tensor | None, np.ndarray]:
        """Outputs to compute (None: all), and the index among them of each label of the batch."""
        if not self._negatives:
            return None, batch.y.indices.astype(np.int64)
        negatives = np.random.default_rng([self._seed, self._steps]).integers(0, self._labels, self._negatives)
        ids = np.union1d(batch.y.indices, negatives).astype(np.int64)
        return torch.from_numpy(ids), np.searchsorted(ids, batch.y.indices)

    def gather(self, value: float) -> list[float]:
        return gathered(value)

    def waiting(self) -> Callable[[float], float]:
        """The share of gradients' exchange in a step."""
        return partial(exchange_share, self._parallel, self.step)

    def state(self) -> list[np.ndarray]:
        return state_of(self._optimizer)

    def precision(self, test: Dataset) -> float:
        """The rows are divided among the ranks."""
        evaluation = Evaluation(ks=(1,))
        with torch.no_grad():
            for begin in range(self.rank * ROWS_AT_A_TIME, len(test), self._size * ROWS_AT_A_TIME):
                part = np.arange(begin, min(begin + ROWS_AT_A_TIME, len(test)))
                best = self._network(test.x.take(part)).argmax(1, keepdim=True)
                evaluation.update(best.numpy(), test.y.take(part))
        hits = self.gather(evaluation.result()["p_at_1"] * evaluation.rows if evaluation.rows else 0.0)
        return sum(hits) / sum(self.gather(evaluation.rows))
