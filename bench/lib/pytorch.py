"""PyTorch on the same work. Threads and the flushing of denormal numbers are set first: threads that PyTorch starts
later inherit the setting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.lib.workload import HIDDEN, NEGATIVES, Batch, batches, read_data, timed_training
from dslide.data import Dataset
from dslide.training.metrics import Evaluation

RATE = 1e-3  # learning rate where only speed is measured
ROWS_AT_A_TIME = 256  # in prediction


def train_sampled(
    folder: str, threads: int, seconds: float, batch_size: int, seed: int, autocast: bool = False
) -> dict[str, float]:
    """EmbeddingBag, ReLU, softmax over the batch's labels and shared random negatives, SparseAdam."""
    use_torch(threads, seed)
    data = read_data(folder)
    step, optimizer = sampled_step(data, seed, autocast)
    return timed_training(step, batches(data, batch_size, seed), seconds, lambda: state_of(optimizer))


def sampled_step(data: Dataset, seed: int, autocast: bool = False) -> tuple[Callable[[Batch], float], Any]:
    """A step of that network, which returns the number of active outputs, and its optimizer. `autocast`: operations
    that PyTorch selects are computed in bf16."""
    import torch

    first = torch.nn.EmbeddingBag(data.features, HIDDEN, mode="sum", sparse=True)
    weights = torch.nn.Embedding(data.labels, HIDDEN, sparse=True)
    bias = torch.nn.Embedding(data.labels, 1, sparse=True)
    optimizer = torch.optim.SparseAdam([*first.parameters(), *weights.parameters(), *bias.parameters()], lr=RATE)
    random = np.random.default_rng(seed)

    def step(batch: Batch) -> float:
        negatives = random.integers(0, data.labels, NEGATIVES, dtype=np.int32)
        ids = np.union1d(batch.y.indices, negatives).astype(np.int64)
        target = _target(batch, np.searchsorted(ids, batch.y.indices), len(ids))
        chosen = torch.from_numpy(ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = _hidden(first, batch.x) @ weights(chosen).T + bias(chosen).T
            loss = torch.nn.functional.cross_entropy(logits, target)
        gradient_step(optimizer, loss)
        return len(ids)

    return step, optimizer


def train_dense(folder: str, threads: int, seconds: float, batch_size: int, seed: int) -> dict[str, float]:
    """The same network with all outputs, and fused Adam over all weights."""
    torch = use_torch(threads, seed)
    data = read_data(folder)
    first, output, optimizer = _dense_network(data.features, data.labels, RATE)

    def step(batch: Batch) -> float:
        target = _target(batch, batch.y.indices.astype(np.int64), data.labels)
        gradient_step(optimizer, torch.nn.functional.cross_entropy(output(_hidden(first, batch.x)), target))
        return data.labels

    return timed_training(step, batches(data, batch_size, seed), seconds, lambda: state_of(optimizer))


def fit_dense(
    folder: str, threads: int, epochs: int, batch_size: int, learning_rate: float, seed: int
) -> dict[str, float]:
    """Trains that network with a learning rate that decays linearly to 0; seconds, and P@1 on test rows."""
    torch = use_torch(threads, seed)
    train, test = read_data(folder), read_data(folder, "test")
    first, output, optimizer = _dense_network(train.features, train.labels, learning_rate)
    start, order = time.perf_counter(), np.random.default_rng(seed)
    steps, total = 0, epochs * -(-len(train) // batch_size)
    for _ in range(epochs):
        rows = order.permutation(len(train))
        for begin in range(0, len(rows), batch_size):
            chosen = rows[begin : begin + batch_size]
            batch = Batch(train.x.take(chosen), train.y.take(chosen))
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * (1 - steps / total)
            target = _target(batch, batch.y.indices.astype(np.int64), train.labels)
            gradient_step(optimizer, torch.nn.functional.cross_entropy(output(_hidden(first, batch.x)), target))
            steps += 1
    seconds, evaluation = time.perf_counter() - start, Evaluation(ks=(1,))
    with torch.no_grad():
        for begin in range(0, len(test), ROWS_AT_A_TIME):
            part = np.arange(begin, min(begin + ROWS_AT_A_TIME, len(test)))
            best = output(_hidden(first, test.x.take(part))).argmax(1, keepdim=True)
            evaluation.update(best.numpy(), test.y.take(part))
    return {"p_at_1": evaluation.result()["p_at_1"], "seconds": seconds}


def use_torch(threads: int, seed: int) -> Any:
    """The torch module, set to so many threads and to flush denormal numbers to 0."""
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(seed)
    return torch


def _dense_network(features: int, labels: int, rate: float) -> tuple[Any, Any, Any]:
    """First layer, output layer and their optimizer, with PyTorch's initial weights."""
    import torch

    first, output = torch.nn.EmbeddingBag(features, HIDDEN, mode="sum"), torch.nn.Linear(HIDDEN, labels)
    return first, output, torch.optim.Adam([*first.parameters(), *output.parameters()], lr=rate, fused=True)


def _hidden(first: Any, x: Any) -> Any:
    """The hidden layer's activations, (rows, HIDDEN)."""
    import torch

    ids, offsets, values = (torch.from_numpy(part) for part in (x.indices.astype(np.int64), x.indptr[:-1], x.values))
    return torch.relu(first(ids, offsets, per_sample_weights=values))


def _target(batch: Batch, columns: Any, width: int) -> Any:
    """The labels, at `columns`, as rows that sum to 1: (rows, width)."""
    import torch

    rows = np.repeat(np.arange(len(batch.y)), np.diff(batch.y.indptr))
    target = torch.zeros(len(batch.y), width)
    target[torch.from_numpy(rows), torch.from_numpy(columns)] = 1
    target /= target.sum(1, keepdim=True).clamp(min=1)
    return target


def gradient_step(optimizer: Any, loss: Any) -> None:
    """A gradient step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def state_of(optimizer: Any) -> list[np.ndarray]:
    """Parameters and the optimizer's moments, not copied."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = [optimizer.state[p][name] for p in parameters for name in ("exp_avg", "exp_avg_sq")]
    return [tensor.detach().numpy() for tensor in parameters + moments]
