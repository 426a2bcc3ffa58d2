"""`dslide.torch` beside other ways of training very many labels in PyTorch: speed, memory and accuracy.

    python -m bench.torch [--quick] [--only speed accuracy] [--labels 100000 1000000] [--out build/bench-torch]
    sudo python -m bench.torch --only cluster [--nodes 2 4] [--rate 1gbit]    # on emulated nodes (dslide netlab)

Systems run in interleaved rounds, each time in a fresh process; the report has medians with the lowest and highest
value, and ratios within a round.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.cluster.labs import lab
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
LIMIT, RANK_BYTES = 240.0, 400 << 20  # seconds of a job on emulated nodes; of a process with PyTorch
CLUSTER = [
    SPEED, Metric("kilobytes_per_sample", "KB a sample on the wire", ",.2f"),
    Metric("step_seconds", "seconds a step", ".3f"), Metric("peak_gigabytes", "peak memory of a node, GB", ".2f"),
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.torch", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a round of short runs")
    parser.add_argument("--only", nargs="+", choices=("speed", "accuracy", "cluster"), default=["speed", "accuracy"])
    parser.add_argument("--labels", type=int, nargs="+", default=[100_000, 1_000_000], help="where speed is measured")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4], help="of emulated clusters")
    parser.add_argument("--rate", default="1gbit", help="of their links")
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
    with ExitStack() as labs:
        if "cluster" in given.only:
            for nodes in given.nodes:
                name = labs.enter_context(lab(nodes))
                sections.append(cluster_section(given.labels[0], nodes, name, given.rate, given.seconds))
        return exit_code(measure(sections, range(given.rounds), given.out, {"arguments": vars(given)}))


def speed_section(labels: int, threads: int, seconds: float) -> Section:
    """Samples a second and memory."""
    named = [*SYSTEMS, ("the encoder alone", "nothing", {}, [])]
    systems = [
        System(
            name, "bench.torch.systems:speed", {"kind": kind, "labels": labels, "threads": threads, "seconds": seconds}
            | options, needs="torch", least_bytes=labels * HIDDEN * 16 + (4 * labels * BATCH * 4),
        )
        for name, kind, options, _ in named
    ]  # fmt: skip
    ours, theirs = systems[:2], systems[2:-1]
    return Section(
        f"Speed, {labels:,} labels",
        f"A Linear layer from 384 to {HIDDEN} numbers and ReLU, batches of {BATCH} rows with one label each, {threads} "
        f"threads, {seconds:g} s a run after up to ten untimed steps. The encoder and its Adam are the same in all.",
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


def cluster_section(labels: int, nodes: int, lab: str, rate: str, seconds: float) -> Section:
    """Samples a second and bytes on emulated nodes, beside DistributedDataParallel of the same network."""
    job = {
        "function": "bench.torch.cluster:speed", "lab": lab, "limit": LIMIT, "labels": labels, "rate": rate,
        "seconds": seconds, "least_steps": 2,
    }  # fmt: skip
    systems = [
        System(
            name if kind == "dslide" else f"{name}, DistributedDataParallel", "bench.cluster.jobs:run_job",
            job | {"kind": kind} | options, needs="torch", limit=LIMIT + 30,
            least_bytes=nodes * (labels * (HIDDEN * 20 + BATCH * 8) + RANK_BYTES),
        )
        for name, kind, options, _ in SYSTEMS if kind in ("dslide", "full", "sampled") and not options.get("compiled")
    ]  # fmt: skip
    ours, theirs = systems[:2], systems[2:]
    return Section(
        f"{nodes} nodes with links of {rate}, {labels:,} labels",
        f"The same network and batches of {BATCH} rows on each of {nodes} emulated nodes, one thread on each, which "
        "share this machine's cores. dslide.torch has the encoder in DistributedDataParallel over gloo and its output "
        "layer split over the nodes; the others have all of the network in DistributedDataParallel. Bytes are those of "
        "all interfaces, headers included.",
        systems,
        CLUSTER,
        [Comparison(a, b, SPEED) for b in theirs for a in ours],
    )


if __name__ == "__main__":
    run_command(main)
