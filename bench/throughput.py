"""Training speed and memory, beside PyTorch."""

from __future__ import annotations

from typing import Any

from dslide import Config, Trainer

from .plan import Plan
from .report import Comparison, Figure, Section
from .runs import System
from .workload import HIDDEN, NEGATIVES, NETWORK, Batch, arrays_of, batches, make_data, read_data, timed_training

SPEED = Figure("samples_per_second", "samples/s")
ACTIVE = Figure("active", "active outputs")
MEMORY = [
    Figure("peak_gigabytes", "most memory, GB", ".2f"),
    Figure("state_gigabytes", "parameters and moments, GB", ".2f"),
    Figure("peak_over_state", "ratio", ".2f"),
]
RANDOM: dict[str, Any] = {"output": "random", "draws": NEGATIVES}
HALVES: dict[str, dict[str, Any]] = {  # what can be of 16 bits
    "bf16 products": {"products": "bf16"},
    "bf16 moments": {"moments": "bf16"},
    "bf16 storage": {"weights": "bf16", "moments": "bf16"},
    "all bf16": {"weights": "bf16", "moments": "bf16", "products": "bf16"},
}


def train(folder: str, threads: int, seconds: float, batch_size: int, seed: int, **options: Any) -> dict[str, float]:
    """dslide, with the options given."""
    data = read_data(folder)
    config = Config(**NETWORK, threads=threads, batch_size=batch_size, seed=seed, **options)
    return timed_dslide(Trainer(config, data.features, data.labels), batches(data, batch_size, seed), seconds)


def timed_dslide(trainer: Trainer, work: list[Batch], seconds: float) -> dict[str, float]:
    """Figures of a trainer on these batches."""
    return timed_training(
        lambda batch: trainer.train_batch(batch.x, batch.y, 0).active,
        work,
        seconds,
        lambda: arrays_of(trainer),
    )


def section(plan: Plan) -> Section:
    """Samples a second beside PyTorch."""
    defaults, shape = _defaults(plan), plan.speed
    random = {size: _dslide(plan, f"dslide, 4,096 random, batch {size:,}", size, **RANDOM) for size in (256, 1024)}
    sampled = {
        size: _torch(plan, f"PyTorch sampled softmax, batch {size:,}", "train_sampled", size) for size in (256, 1024)
    }
    rounded = _torch(plan, "PyTorch sampled softmax, bf16 autocast, batch 256", "train_sampled", 256, autocast=True)
    dense = _torch(plan, "PyTorch full softmax, batch 128", "train_dense", 128)
    halves = {
        name: _dslide(plan, f"dslide, 4,096 random, batch 256, {name}", **RANDOM, **options)
        for name, options in HALVES.items()
    }
    return Section(
        "Training speed",
        f"{shape.features:,} features, hidden {HIDDEN}, {shape.labels:,} labels, {plan.threads} threads, "
        f"{plan.seconds:g} s a run, after a few steps and a write to all parameters and moments that are not counted. "
        "Denormal numbers are flushed to 0 in every system. PyTorch's sampled softmax is EmbeddingBag, the labels of "
        "the batch and 4,096 random negatives, and SparseAdam; its full softmax has fused Adam. Other peers on PyPI "
        "are not run: napkinXC and omikuji train linear classifiers in label trees and fastText knows no feature "
        "values, so that their samples are not these; TensorFlow's sampled softmax would compare.",
        [defaults, random[256], *halves.values(), sampled[256], rounded, random[1024], sampled[1024], dense],
        [SPEED, ACTIVE],
        [
            Comparison(defaults, sampled[256], SPEED),
            *(Comparison(system, random[256], SPEED) for system in halves.values()),
            *(Comparison(halves[name], sampled[256], SPEED) for name in ("bf16 products", "all bf16")),
            *(Comparison(halves[name], rounded, SPEED) for name in ("bf16 products", "all bf16")),
            *(Comparison(random[size], sampled[size], SPEED) for size in random),
            *(Comparison(system, dense, SPEED) for system in (defaults, *random.values())),
        ],
    )


def memory_section(plan: Plan) -> Section:
    """Memory of the same runs."""
    return Section(
        "Memory",
        "Of the runs above: the most that a process held, data and program included, over the bytes of its parameters "
        "and moments.",
        section(plan).systems,
        MEMORY,
    )


def _defaults(plan: Plan) -> System:
    return _dslide(plan, "dslide, default sampling, batch 256")


def _dslide(plan: Plan, name: str, batch_size: int = 256, threads: int = 0, **options: Any) -> System:
    arguments = _work(plan, batch_size) | {"threads": threads or plan.threads} | options
    return System(name, f"{__name__}:train", arguments)


def _torch(plan: Plan, name: str, function: str, batch_size: int, **options: Any) -> System:
    return System(name, f"bench.peers:{function}", _work(plan, batch_size) | options, needs="torch")


def _work(plan: Plan, batch_size: int) -> dict[str, Any]:
    folder = make_data(plan.data, plan.speed)
    return {"folder": str(folder), "threads": plan.threads, "seconds": plan.seconds, "batch_size": batch_size}
