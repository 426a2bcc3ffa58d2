"""Training speed and memory, beside PyTorch."""

from __future__ import annotations

from typing import Any

from bench.lib.processes import System
from bench.lib.sections import Comparison, Section
from bench.lib.training import ACTIVE, BF16, MEMORY, RANDOM, SPEED
from bench.lib.workload import HIDDEN
from bench.single.plan import Plan


def section(plan: Plan) -> Section:
    """Samples a second beside PyTorch."""

    def dslide(name: str, batch_size: int = 256, **options: Any) -> System:
        return System(name, "bench.lib.training:train", plan.timed_work() | {"batch_size": batch_size} | options)

    def torch(name: str, function: str, batch_size: int, **options: Any) -> System:
        arguments = plan.timed_work() | {"batch_size": batch_size} | options
        return System(name, f"bench.lib.pytorch:{function}", arguments, needs="torch")

    shape, sizes = plan.speed, (256, 1024)
    defaults = dslide("dslide, default sampling, batch 256")
    random = {size: dslide(f"dslide, 4,096 random negatives, batch {size:,}", size, **RANDOM) for size in sizes}
    sampled = {size: torch(f"PyTorch sampled softmax, batch {size:,}", "train_sampled", size) for size in sizes}
    autocast = torch("PyTorch sampled softmax, bf16 autocast, batch 256", "train_sampled", 256, autocast=True)
    dense = torch("PyTorch full softmax, batch 128", "train_dense", 128)
    rounded = {
        name: dslide(f"dslide, 4,096 random negatives, batch 256, {name}", **RANDOM, **options)
        for name, options in BF16.items()
    }
    return Section(
        "Training speed",
        f"{shape.features:,} features, hidden {HIDDEN}, {shape.labels:,} labels, {plan.threads} threads, "
        f"{plan.seconds:g} s a run, after a few untimed steps and a write to all parameters and moments. Denormal "
        "numbers are flushed to 0 in every system. PyTorch's sampled softmax is EmbeddingBag, the labels of the batch "
        "and 4,096 random negatives, and SparseAdam; its full softmax has fused Adam. Other peers on PyPI are not run: "
        "napkinXC and omikuji train linear classifiers in label trees, and fastText takes no feature values, so their "
        "samples differ from these; TensorFlow's sampled softmax would be comparable.",
        [defaults, random[256], *rounded.values(), sampled[256], autocast, random[1024], sampled[1024], dense],
        [SPEED, ACTIVE],
        [
            Comparison(defaults, sampled[256], SPEED),
            *(Comparison(system, random[256], SPEED) for system in rounded.values()),
            *(Comparison(rounded[name], sampled[256], SPEED) for name in ("bf16 products", "all bf16")),
            *(Comparison(rounded[name], autocast, SPEED) for name in ("bf16 products", "all bf16")),
            *(Comparison(random[size], sampled[size], SPEED) for size in sizes),
            *(Comparison(system, dense, SPEED) for system in (defaults, *random.values())),
        ],
    )


def memory_section(plan: Plan) -> Section:
    """Memory of the same runs."""
    return Section(
        "Memory",
        "Of the runs above: the peak memory of a process, data and program included, over the bytes of its parameters "
        "and moments.",
        section(plan).systems,
        MEMORY,
    )
