"""dslide and PyTorch's sampled softmax in interleaved rounds of a few steps: changes of the machine's speed from second
to second affect both."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from bench.lib.processes import System
from bench.lib.pytorch import sampled_step, state_of, use_torch
from bench.lib.sections import Metric, Section
from bench.lib.training import BF16, RANDOM
from bench.lib.workload import NETWORK, WARM_UP_STEPS, Batch, arrays_of, batches, read_data, write_to
from bench.single.plan import Plan
from dslide import Config, Trainer
from dslide.data import Dataset

ROUND = 0.3  # seconds of each system in a round, about
TIMEOUT = 120.0  # seconds to wait for the other process

Step = Callable[[Batch], float]


def _dslide(
    data: Dataset, threads: int, batch_size: int, seed: int, **options: Any
) -> tuple[Step, Callable[[], list[Any]]]:
    config = Config(**NETWORK | RANDOM | options, threads=threads, batch_size=batch_size, seed=seed)
    trainer = Trainer(config, data.features, data.labels)
    return lambda batch: trainer.train_batch(batch.x, batch.y, 0).active, lambda: arrays_of(trainer)


def _torch(
    data: Dataset, threads: int, batch_size: int, seed: int, autocast: bool
) -> tuple[Step, Callable[[], list[Any]]]:
    use_torch(threads, seed)
    step, optimizer = sampled_step(data, seed, autocast)
    return step, lambda: state_of(optimizer)


def serve(
    pipe: Connection, make: Callable[..., Any], options: dict[str, Any], folder: str, threads: int, batch_size: int,
    seed: int,
) -> None:  # fmt: skip
    """Trains for a round on each request; answers with rows a second."""
    data = read_data(folder)
    step, state = make(data, threads, batch_size, seed, **options)
    work, done = batches(data, batch_size, seed), 0
    for batch in work[:WARM_UP_STEPS]:
        step(batch)
    write_to(state())
    pipe.send("ready")
    while pipe.recv() == "go":
        start, rows = time.perf_counter(), 0
        while time.perf_counter() - start < ROUND:
            batch = work[done % len(work)]
            step(batch)
            rows, done = rows + len(batch.x), done + 1
        pipe.send(rows / (time.perf_counter() - start))


def train(
    folder: str, threads: int, seconds: float, batch_size: int, seed: int, autocast: bool = False, **options: Any
) -> dict[str, float]:
    """Median rows a second of both, and the median of the ratios within a round. `options` are dslide's."""
    context, pipes, processes = get_context("spawn"), {}, []
    systems: list[tuple[str, Any, dict[str, Any]]] = [
        ("dslide", _dslide, options),
        ("PyTorch", _torch, {"autocast": autocast}),
    ]
    for name, make, own in systems:
        pipes[name], there = context.Pipe()
        arguments = (there, make, own, folder, threads, batch_size, seed)
        processes.append(context.Process(target=serve, args=arguments, daemon=True))
        processes[-1].start()
        there.close()

    def answer(name: str) -> Any:
        try:
            if pipes[name].poll(TIMEOUT):
                return pipes[name].recv()
        except EOFError:
            raise RuntimeError(f"the process of {name} exited") from None
        raise TimeoutError(f"the process of {name} gave no answer for {TIMEOUT:.0f} s")

    for name in pipes:
        answer(name)
    speeds: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pair = []
        for name, pipe in pipes.items():
            pipe.send("go")
            pair.append(answer(name))
        speeds.append((pair[0], pair[1]))
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send("end")
        process.join(TIMEOUT)
    return {
        "dslide": median(d for d, _ in speeds),
        "torch": median(t for _, t in speeds),
        "ratio": median(d / t for d, t in speeds),
        "rounds": len(speeds),
    }


def section(plan: Plan) -> Section:
    """A row for each size of batch, and for 16-bit numbers."""
    work = plan.timed_work(2)
    systems = [
        System(f"batch {size:,}{name}", f"{__name__}:train", work | {"batch_size": size} | more, "torch")
        for size in (256, 1024)
        for name, more in (
            ("", {}),
            (", bf16 products", BF16["bf16 products"]),
            (", all bf16; PyTorch with bf16 autocast", BF16["all bf16"] | {"autocast": True}),
        )
    ]
    return Section(
        "Interleaved with PyTorch",
        "dslide with 4,096 random negatives and PyTorch's sampled softmax as above, each in a process of its own, in "
        f"interleaved rounds of {ROUND} seconds each: median samples a second, and the median of the ratios within a "
        "round. PyTorch computes with 32-bit floats unless a row says otherwise.",
        systems,
        [
            Metric("dslide", "dslide, samples/s"),
            Metric("torch", "PyTorch, samples/s"),
            Metric("ratio", "ratio", ".2f"),
            Metric("rounds", "rounds"),
        ],
    )
