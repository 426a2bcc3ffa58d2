"""The systems compared. Each is a function from (data folder, threads, seconds) to its figures, run in a process of its
own: `python -m bench.systems NAME FOLDER THREADS SECONDS` prints them as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .workload import FEATURES, HIDDEN, LABELS, Batch, batches, read_data, timed

NEGATIVES = 4096
Figures = dict[str, float]


def dslide(folder: Path, threads: int, seconds: float, batch_size: int, **options: Any) -> Figures:
    from dslide import Config, Trainer

    trainer = Trainer(
        Config(hidden=(HIDDEN,), threads=threads, batch_size=batch_size, **options), FEATURES, LABELS
    )
    active: list[float] = []

    def step(batch: Batch) -> None:
        active.append(trainer.train_batch(batch.x, batch.y, 0).active)

    figures = timed(step, batches(read_data(folder), batch_size), seconds)
    return figures | {"active": float(np.mean(active))}


def torch_hidden(first: Any, batch: Batch) -> Any:
    """The hidden layer's activations, (rows, HIDDEN)."""
    import torch

    ids, offsets = batch.x.indices.astype(np.int64), batch.x.indptr[:-1]
    values = torch.from_numpy(batch.x.values)
    return torch.relu(first(torch.from_numpy(ids), torch.from_numpy(offsets), per_sample_weights=values))


def torch_target(batch: Batch, columns: Any, width: int) -> Any:
    """The labels, at `columns`, as rows that sum to 1: (rows, width)."""
    import torch

    rows = np.repeat(np.arange(len(batch.y)), np.diff(batch.y.indptr))
    target = torch.zeros(len(batch.y), width)
    target[torch.from_numpy(rows), torch.from_numpy(columns)] = 1
    target /= target.sum(1, keepdim=True).clamp(min=1)
    return target


def torch_sampled(folder: Path, threads: int, seconds: float, batch_size: int) -> Figures:
    """EmbeddingBag, ReLU, softmax over the batch's labels and shared random negatives, SparseAdam."""
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    first = torch.nn.EmbeddingBag(FEATURES, HIDDEN, mode="sum", sparse=True)
    weights, bias = torch.nn.Embedding(LABELS, HIDDEN, sparse=True), torch.nn.Embedding(LABELS, 1, sparse=True)
    optimizer = torch.optim.SparseAdam([*first.parameters(), *weights.parameters(), *bias.parameters()], lr=1e-3)
    random, active = np.random.default_rng(0), []

    def step(batch: Batch) -> None:
        ids = np.union1d(batch.y.indices, random.integers(0, LABELS, NEGATIVES, dtype=np.int32)).astype(np.int64)
        target = torch_target(batch, np.searchsorted(ids, batch.y.indices), len(ids))
        hidden = torch_hidden(first, batch)
        chosen = torch.from_numpy(ids)
        logits = hidden @ weights(chosen).T + bias(chosen).T
        loss = torch.nn.functional.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        active.append(len(ids))

    figures = timed(step, batches(read_data(folder), batch_size), seconds)
    return figures | {"active": float(np.mean(active))}


def torch_dense(folder: Path, threads: int, seconds: float, batch_size: int) -> Figures:
    """The same network with all outputs and fused Adam over all weights."""
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    first, output = torch.nn.EmbeddingBag(FEATURES, HIDDEN, mode="sum"), torch.nn.Linear(HIDDEN, LABELS)
    optimizer = torch.optim.Adam([*first.parameters(), *output.parameters()], lr=1e-3, fused=True)

    def step(batch: Batch) -> None:
        target = torch_target(batch, batch.y.indices.astype(np.int64), LABELS)
        hidden = torch_hidden(first, batch)
        loss = torch.nn.functional.cross_entropy(output(hidden), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return timed(step, batches(read_data(folder), batch_size), seconds) | {"active": float(LABELS)}


SYSTEMS: dict[str, Callable[[Path, int, float], Figures]] = {
    "dslide, defaults": lambda f, t, s: dslide(f, t, s, 256),
    "dslide, 4,096 random": lambda f, t, s: dslide(f, t, s, 256, output="random", draws=NEGATIVES),
    "dslide, 4,096 random, batch 1,024": lambda f, t, s: dslide(f, t, s, 1024, output="random", draws=NEGATIVES),
    "PyTorch sampled, 4,096 random": lambda f, t, s: torch_sampled(f, t, s, 256),
    "PyTorch sampled, 4,096 random, batch 1,024": lambda f, t, s: torch_sampled(f, t, s, 1024),
    "PyTorch dense": lambda f, t, s: torch_dense(f, t, s, 128),
}

if __name__ == "__main__":
    name, folder, threads, seconds = sys.argv[1:]
    print(json.dumps(SYSTEMS[name](Path(folder), int(threads), float(seconds))))
