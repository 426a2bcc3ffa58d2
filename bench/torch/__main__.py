"""`dslide.torch` beside other ways of training very many labels in PyTorch: speed, memory and accuracy.

    python -m bench.torch [--quick] [--only speed accuracy] [--labels 100000 1000000] [--out build/bench-torch]

Systems run in interleaved rounds, each time in a fresh process; the report has medians with the lowest and highest
value, and ratios within a round.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench.lib.measuring import exit_code, measure, run_command
from bench.lib.processes import System
from bench.lib.sections import Comparison, Metric, Section
from bench.lib.training import MEMORY, PRECISION, SECONDS, SPEED
from dslide.util.threads import available_cores

NEGATIVES, BATCH, HIDDEN = 4096, 256, 128  # as in systems.py, which imports PyTorch
# Name, kind and options of each system, and learning rates that are tried where accuracy counts; 0: the default.
RANDOM = {"output": "random", "random_negatives": NEGATIVES}
SYSTEMS: list[tuple[str, str, dict[str, Any], list[float]]] = [
    ("dslide.torch, defaults", "dslide", {}, [0.0, 0.1]),
    (f"dslide.torch, {NEGATIVES:,} random negatives", "dslide", RANDOM, [0.0, 0.1]),
    ("Linear, CrossEntropyLoss, Adam", "full", {}, [1e-3, 3e-3]),
    ("LinearCrossEntropyLoss, Adam", "chunked", {}, [1e-3, 3e-3]),
    ("AdaptiveLogSoftmaxWithLoss, Adam", "adaptive", {}, [1e-3, 3e-3]),
    (f"sampled by hand, {NEGATIVES:,} negatives, SparseAdam", "sampled", {}, [1e-3, 3e-3]),
    ("sampled by hand, torch.compile", "sampled", {"compiled": True}, [1e-3, 3e-3]),
]
WITH_ALL_LABELS = ("full", "chunked")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.torch", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a round of short runs")
    parser.add_argument("--only", nargs="+", choices=("speed", "accuracy"), default=["speed", "accuracy"])
    parser.add_argument("--labels", type=int, nargs="+", default=[100_000, 1_000_000], help="where speed is measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="for which a run is timed")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--out", type=Path, default=Path("build/bench-torch"))
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds = 1, 1.0
    sections = []
    if "speed" in given.only:
        sections += [speed_section(labels, given.threads, given.seconds) for labels in given.labels]
    if "accuracy" in given.only:
        sections.append(accuracy_section(given.threads, *((2000, 4000, 2) if given.quick else (16_000, 48_000, 4))))
    return exit_code(measure(sections, range(given.rounds), given.out, {"arguments": vars(given)}))


def speed_section(labels: int, threads: int, seconds: float) -> Section:
    """Samples a second and memory."""
    systems = [
        System(
            name, "bench.torch.systems:speed", {"kind": kind, "labels": labels, "threads": threads, "seconds": seconds}
            | options, needs="torch", least_bytes=labels * HIDDEN * 16 + (4 * labels * BATCH * 4),
        )
        for name, kind, options, _ in SYSTEMS
    ]  # fmt: skip
    ours, theirs = systems[:2], systems[2:]
    return Section(
        f"Speed, {labels:,} labels",
        f"EmbeddingBag and ReLU to {HIDDEN} numbers, batches of {BATCH} rows with one label each, {threads} threads, "
        f"{seconds:g} s a run after up to ten untimed steps. The encoder and its SparseAdam are the same in all.",
        systems,
        [SPEED, MEMORY[0]],
        [Comparison(a, b, SPEED) for b in theirs for a in ours],
    )


def accuracy_section(threads: int, labels: int, rows: int, epochs: int) -> Section:
    """P@1 at equal epochs."""
    systems = [
        System(
            name, "bench.torch.systems:fit", {
                "kind": kind, "labels": labels, "rows": rows, "epochs": epochs, "rates": rates, "threads": threads,
            } | options, needs="torch",
        )
        for name, kind, options, rates in SYSTEMS
    ]  # fmt: skip
    return Section(
        f"Accuracy, {labels:,} labels",
        f"{rows:,} rows of words made here, {epochs} epochs, a rate that decays linearly. Every system has two tries "
        "at the output layer's learning rate, and shows the better one.",
        systems,
        [PRECISION, Metric("rate", "learning rate", "g"), SECONDS],
    )


if __name__ == "__main__":
    run_command(main)
