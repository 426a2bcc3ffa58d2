"""dslide and PyTorch's sampled softmax by turns, a few steps each: on a machine whose speed changes from second to
second, both meet the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from dslide import Config, Trainer
from dslide.data import Dataset

from .peers import sampled_step, state_of, use_torch
from .plan import Plan
from .report import Figure, Section
from .runs import System
from .throughput import HALVES, RANDOM
from .workload import NETWORK, WARM_UP_STEPS, Batch, arrays_of, make_data, read_data, write_to
from .workload import batches as cut

SLICE = 0.3  # seconds of a turn, about
PATIENCE = 120.0  # seconds for which the other process is waited for

Step = Callable[[Batch], float]


def _dslide(
    data: Dataset, threads: int, batch_size: int, seed: int, **options: Any
) -> tuple[Step, Callable[[], list[Any]]]:
    config = Config(**NETWORK, **RANDOM, **options, threads=threads, batch_size=batch_size, seed=seed)
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
    """Trains for a turn whenever it is asked to; answers with rows a second."""
    data = read_data(folder)
    step, state = make(data, threads, batch_size, seed, **options)
    work, done = cut(data, batch_size, seed), 0
    for batch in work[:WARM_UP_STEPS]:
        step(batch)
    write_to(state())
    pipe.send("ready")
    while pipe.recv() == "go":
        start, rows = time.perf_counter(), 0
        while time.perf_counter() - start < SLICE:
            batch = work[done % len(work)]
            step(batch)
            rows, done = rows + len(batch.x), done + 1
        pipe.send(rows / (time.perf_counter() - start))


def train(
    folder: str, threads: int, seconds: float, batch_size: int, seed: int, autocast: bool = False, **options: Any
) -> dict[str, float]:
    """Rows a second of both in the median turn, and the median of the ratios of turns that follow one another.
    `options` are dslide's."""
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
            if pipes[name].poll(PATIENCE):
                return pipes[name].recv()
        except EOFError:
            raise RuntimeError(f"the process of {name} has ended") from None
        raise TimeoutError(f"the process of {name} gave no answer for {PATIENCE:.0f} s")

    for name in pipes:
        answer(name)
    speeds: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        turn = []
        for name, pipe in pipes.items():
            pipe.send("go")
            turn.append(answer(name))
        speeds.append((turn[0], turn[1]))
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send("end")
        process.join(PATIENCE)
    return {
        "dslide": median(d for d, _ in speeds),
        "torch": median(t for _, t in speeds),
        "ratio": median(d / t for d, t in speeds),
        "turns": len(speeds),
    }


def section(plan: Plan) -> Section:
    """A row for each size of batch, and for 16-bit numbers."""
    work = {"folder": str(make_data(plan.data, plan.speed)), "threads": plan.threads, "seconds": 2 * plan.seconds}
    systems = [
        System(f"4,096 random, batch {size:,}{name}", f"{__name__}:train", work | {"batch_size": size} | more, "torch")
        for size in (256, 1024)
        for name, more in (
            ("", {}),
            (", bf16 products", HALVES["bf16 products"]),
            (", all bf16; PyTorch with bf16 autocast", HALVES["all bf16"] | {"autocast": True}),
        )
    ]
    return Section(
        "By turns with PyTorch",
        f"dslide and PyTorch's sampled softmax as above, each in a process of its own, by turns of {SLICE} seconds: "
        "samples a second in the median turn, and the median ratio of turns that follow one another. Where PyTorch is "
        "not named, it computes with 32-bit floats.",
        systems,
        [
            Figure("dslide", "dslide, samples/s"),
            Figure("torch", "PyTorch, samples/s"),
            Figure("ratio", "ratio", ".2f"),
            Figure("turns", "turns"),
        ],
    )
