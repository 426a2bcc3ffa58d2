"""The systems: one encoder in PyTorch before different output layers. Where accuracy counts it is an EmbeddingBag of
words with SparseAdam; where speed does, a Linear layer with Adam over vectors, which takes next to no time itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.lib.pytorch import use_torch
from bench.torch.data import make_words
from dslide.torch import OutputLayer
from dslide.util.memory import peak_rss_bytes

VOCABULARY, COLUMNS, HIDDEN, BATCH = 20_000, 384, 128, 256
NEGATIVES = 4096
CHUNK = 64  # rows whose logits LinearCrossEntropyLoss holds
SPEED_ROWS = 20_000  # where speed is measured
TEST_ROWS, AT_A_TIME = 2000, 100
Tensor = torch.Tensor


@dataclass(frozen=True)
class Output:
    """An output layer behind the encoder."""

    loss: Callable[[Tensor, Tensor], Tensor]  # of hidden vectors and labels
    optimizers: list[Any]
    best: Callable[[Tensor], Tensor]  # label of each hidden vector
    modules: tuple[torch.nn.Module, ...] = ()  # with parameters


def adam(parameters: Any, rate: float) -> Any:
    return torch.optim.Adam(parameters, lr=rate, fused=True)


def of_dslide(labels: int, rate: float, counts: Tensor, **options: Any) -> Output:
    layer = OutputLayer(HIDDEN, labels, **({"learning_rate": rate} if rate else {}) | options)
    layer.set_label_counts(counts, int(counts.sum()))
    return Output(layer, [layer.optimizer], lambda h: layer.topk(h, 1).indices[:, 0])


def full(labels: int, rate: float, counts: Tensor) -> Output:
    linear = torch.nn.Linear(HIDDEN, labels)
    return Output(
        lambda h, y: torch.nn.functional.cross_entropy(linear(h), y), [adam(linear.parameters(), rate)],
        lambda h: linear(h).argmax(1), (linear,),
    )  # fmt: skip


def chunked(labels: int, rate: float, counts: Tensor) -> Output:
    """PyTorch's own loss that never holds all logits. By default it takes one row at a time for so many labels, which
    is ten times as slow or slower."""
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK, chunking_method=None)
    loss = torch.nn.LinearCrossEntropyLoss(HIDDEN, labels, bias=True, options=options)
    return Output(loss, [adam(loss.parameters(), rate)], lambda h: loss.linear(h).argmax(1), (loss,))


def adaptive(labels: int, rate: float, counts: Tensor) -> Output:
    cutoffs = [labels // share for share in (50, 10, 3)]
    loss = torch.nn.AdaptiveLogSoftmaxWithLoss(HIDDEN, labels, cutoffs)
    return Output(lambda h, y: loss(h, y).loss, [adam(loss.parameters(), rate)], loss.predict, (loss,))


def sampled(labels: int, rate: float, counts: Tensor, compiled: bool = False) -> Output:
    """Sampled softmax as one writes it: the row's label against random ones, uniform and corrected, sparse gradients,
    SparseAdam."""
    weights = torch.nn.Embedding(labels, HIDDEN, sparse=True)
    bias = torch.nn.Embedding(labels, 1, sparse=True)
    torch.nn.init.normal_(weights.weight, std=HIDDEN**-0.5)
    torch.nn.init.zeros_(bias.weight)
    offset = math.log(labels / NEGATIVES)

    def of_vectors(h: Tensor, own: Tensor, own_bias: Tensor, others: Tensor, bias: Tensor, same: Tensor) -> Tensor:
        first = (h * own).sum(1, keepdim=True) + own_bias
        more = (h @ others.T + bias[:, 0] + offset).masked_fill(same, -torch.inf)
        target = torch.zeros(len(h), dtype=torch.int64)
        return torch.nn.functional.cross_entropy(torch.cat([first, more], 1), target)

    run = torch.compile(of_vectors) if compiled else of_vectors  # sparse gradients themselves can't be compiled

    def loss(h: Tensor, y: Tensor) -> Tensor:
        negatives = torch.randint(0, labels, (NEGATIVES,))
        same = negatives[None] == y[:, None]
        return run(h, weights(y), bias(y), weights(negatives), bias(negatives), same)

    optimizer = torch.optim.SparseAdam([*weights.parameters(), *bias.parameters()], lr=rate)
    return Output(
        loss, [optimizer], lambda h: (h @ weights.weight.T + bias.weight[:, 0]).argmax(1), (weights, bias)
    )  # fmt: skip


def nothing(labels: int, rate: float, counts: Tensor) -> Output:
    """No output layer: what the encoder takes alone."""
    return Output(lambda h, y: h.square().mean(), [], lambda h: h.argmax(1))


OUTPUTS: dict[str, Callable[..., Output]] = {
    "dslide": of_dslide, "full": full, "chunked": chunked, "adaptive": adaptive, "sampled": sampled, "nothing": nothing,
}  # fmt: skip


class Model:
    """Encoder, of words or vectors, and output layer."""

    def __init__(
        self, kind: str, labels: int, rate: float, counts: Tensor, options: dict[str, Any], words: bool = True
    ) -> None:
        self.encoder: torch.nn.Module
        if words:
            self.encoder = torch.nn.EmbeddingBag(VOCABULARY, HIDDEN, mode="sum", sparse=True)
            torch.nn.init.normal_(self.encoder.weight, std=0.1)
            optimizer: Any = torch.optim.SparseAdam(self.encoder.parameters(), lr=1e-3)
        else:
            self.encoder = torch.nn.Linear(COLUMNS, HIDDEN)
            optimizer = adam(self.encoder.parameters(), 1e-3)
        self.output = OUTPUTS[kind](labels, rate, counts, **options)
        self.optimizers = [optimizer, *self.output.optimizers]

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.encoder(x))

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.output.loss(self.hidden(x), labels)

    def step(self, x: Tensor, labels: Tensor, loss_of: Callable[[Tensor, Tensor], Tensor] | None = None) -> float:
        """`loss_of`: what takes the place of `loss`, such as this model for several ranks."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = (loss_of or self.loss)(x, labels)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return float(loss.detach())


def make_vectors(labels: int, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random vectors, and labels as frequent as those of `make_words`."""
    y = torch.from_numpy(make_words(VOCABULARY, labels, rows, seed).labels)
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(seed)), y


def speed(kind: str, labels: int, threads: int, seconds: float, seed: int, **options: Any) -> dict[str, float]:
    """Samples a second after some untimed steps, and the peak memory of the process."""
    use_torch(threads, seed)
    x, y = make_vectors(labels, SPEED_ROWS, seed)
    counts = torch.bincount(y, minlength=labels)
    model, start, rows, step = Model(kind, labels, 1e-3, counts, options, words=False), 0.0, 0, 0
    begin = time.perf_counter()
    while not start or time.perf_counter() - start < seconds:
        if not start and step > 1 and (step > 10 or time.perf_counter() - begin > seconds):
            start, rows = time.perf_counter(), 0
        at = step * BATCH % (len(y) - BATCH)
        model.step(x[at : at + BATCH], y[at : at + BATCH])
        rows, step = rows + BATCH, step + 1
    return {
        "samples_per_second": rows / (time.perf_counter() - start),
        "peak_gigabytes": peak_rss_bytes() / 1e9,
    }  # fmt: skip


def fit(
    kind: str, labels: int, rows: int, epochs: int, rates: list[float], threads: int, seed: int, **options: Any
) -> dict[str, float]:
    """P@1 on test rows after some epochs, at the rate that is the best; seconds are those of one training."""
    use_torch(threads, seed)
    train, test = make_words(VOCABULARY, labels, rows, seed), make_words(VOCABULARY, labels, TEST_ROWS, seed + 1000)
    words, y = torch.from_numpy(train.words), torch.from_numpy(train.labels)
    found = []
    for rate in rates:
        torch.manual_seed(seed)
        model = Model(kind, labels, rate, torch.bincount(y, minlength=labels), options)
        schedules = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.01, epochs * rows // BATCH) for o in model.optimizers]
        start = time.perf_counter()
        for epoch in range(epochs):
            order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(rows))
            for at in range(0, rows - BATCH + 1, BATCH):
                some = order[at : at + BATCH]
                model.step(words[some], y[some])
                for schedule in schedules:
                    schedule.step()
        seconds = time.perf_counter() - start
        with torch.no_grad():
            best = [model.output.best(model.hidden(part)) for part in torch.from_numpy(test.words).split(AT_A_TIME)]
        right = (torch.cat(best).numpy() == test.labels).mean()
        found.append({"p_at_1": float(right), "rate": rate, "seconds": seconds})
    return max(found, key=lambda run: run["p_at_1"])
