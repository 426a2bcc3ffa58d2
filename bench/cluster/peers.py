"""Experiment 1: dslide beside PyTorch's data parallel training on slow links, Amazon-670K's shape.

    sudo python -m bench.cluster rivals [--quick] [--rounds 1] [--nodes 2,4] [--rates 100mbit,1gbit]
                                        [--only default ddp-dense ...] [--parts speed,curves]

Writes speed, bytes, waiting and memory of every system to report.md and report.json, and P@1 against time, with the
most nodes on the slowest links, to curves/report.md and curves.svg.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dslide import netlab
from dslide.errors import ConfigError

from ..measuring import measure
from ..picture import Points, write_curves
from ..report import Comparison, Figure, Section
from ..runs import Outcome, System
from ..workload import AMAZON, BATCH, HIDDEN, NEGATIVES, RATE, make_data

SPEED = Figure("samples_per_second", "samples/s", ",.1f")
BYTES = Figure("kilobytes_per_sample", "KB on the wire a sample", ",.2f")
FIGURES = [
    SPEED,
    BYTES,
    Figure("megabytes_per_step", "MB a node sends in a step", ",.3f"),
    Figure("waiting", "waiting for the network, %"),
    Figure("peak_gigabytes", "most memory of a node, GB", ".2f"),
    Figure("step_seconds", "seconds a step", ".3f"),
    Figure("steps", "steps timed"),
]
LEARNED = [
    Figure("p_at_1", "P@1 at the end", ".4f"),
    Figure("seconds", "seconds of training", ",.1f"),
    Figure("steps", "steps"),
]
LIMIT = 600.0  # seconds for one job; a step of a full softmax takes about one minute at 100 Mbit/s
LAB_LIMIT = LIMIT + 30  # in which a lab ends a job that took too long
PROGRAM_BYTES = 700 << 20  # of a rank of PyTorch beside parameters, gradients, moments and logits
DENSE_BATCH, LARGE_BATCH = 128, 512  # of each rank
PARTS = ("speed", "curves")
PARAMETERS = HIDDEN * (AMAZON.features + AMAZON.labels) + AMAZON.labels
METHOD = (
    "Denormal numbers are flushed to 0 in every system. Bytes are those that the interfaces of all nodes together "
    "sent in the timed steps, headers included. Waiting is in dslide the share of time in which a rank could only "
    "wait for others: for the link or, with more nodes than cores, for their turn to compute; in PyTorch it is what a "
    "step takes longer than one without exchange (no_sync), measured afterwards, so that adding up what others sent "
    "is in it. Each rank of PyTorch has a copy of the network and batches of its own; DistributedDataParallel over "
    "gloo sums either dense gradients of all parameters, with fused Adam, or sparse ones, with EmbeddingBag, "
    "SparseAdam and the same negatives on all ranks. Ranks begin with equal weights that are not sent. dslide with "
    "all outputs is split over nodes as dslide always is, but not sparse."
)
HOROVOD = (
    "Horovod 0.28.1 is not among them: its source on PyPI does not build with PyTorch 2.13, whose headers need C++17 "
    "where Horovod's build asks for C++14 (and CMake 4 refuses the gloo inside it). DistributedDataParallel over gloo "
    "stands for it: both add up dense gradients of all ranks."
)


@dataclass(frozen=True)
class Rival:
    """A system: its name in tables, how a rank of it is made, and the memory that each node needs."""

    name: str
    kind: str
    options: dict[str, Any] = field(hash=False)
    bytes_per_node: int = 0


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    seconds: float  # for which steps are timed
    least_steps: int
    curve_seconds: float
    curve_every: float  # seconds of training between tests


FULL = Settings(seconds=8, least_steps=2, curve_seconds=60, curve_every=6)
QUICK = Settings(seconds=2, least_steps=1, curve_seconds=8, curve_every=4)


def rivals(nodes: int) -> dict[str, Rival]:
    """The systems on so many nodes, by the names that `--only` takes."""

    def ddp(batch: int, negatives: int = 0) -> Rival:
        what = f"{negatives:,} random negatives" if negatives else "all outputs"
        logits = 0 if negatives else 2 * batch * AMAZON.labels  # and their gradient
        memory = PROGRAM_BYTES + 4 * (4 * PARAMETERS + logits)
        options = {"batch_size": batch, "negatives": negatives}
        return Rival(f"PyTorch DDP, {what}, batch {nodes} x {batch}", "ddp", options, memory)

    def dslide(what: str, batch: int, **options: Any) -> Rival:
        return Rival(f"dslide, {what}, batch {batch:,}", "dslide", {"batch_size": batch, **options})

    # A batch is that of the whole network in dslide, and that of a rank in PyTorch: the two with random negatives
    # train on the same rows in a step.
    found = {
        "default": dslide("default sampling", BATCH),
        "random": dslide(f"{NEGATIVES:,} random negatives", nodes * BATCH, output="random", draws=NEGATIVES),
        "full": dslide("all outputs", BATCH, output="full", loss="softmax"),
        "ddp-sampled": ddp(BATCH, NEGATIVES),
        "ddp-dense": ddp(DENSE_BATCH),
    }
    if nodes == 2:  # four would need 20 GB, by `bytes_per_node`
        found["ddp-dense-large"] = ddp(LARGE_BATCH)
    return found


CURVES = {  # systems in the picture, and their names there, for which there is little room
    "default": "dslide",
    "random": "dslide, random negatives",
    "ddp-sampled": "DDP, random negatives",
    "ddp-dense": "DDP, all outputs",
}
NAMES = tuple(rivals(2))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=_nodes, help="numbers of nodes (default: 2,4; quick: 2)")
    parser.add_argument("--rates", type=_rates, help="link speeds (default: 100mbit,1gbit; quick: 100mbit)")
    names = f"of {', '.join(NAMES)}"
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="SYSTEM", help=names)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="speed, curves (default: both)")


def run(options: argparse.Namespace) -> int:
    """Measures speed in some rounds, and the curves in one."""
    settings = QUICK if options.quick else FULL
    nodes = options.nodes or ([2] if options.quick else [2, 4])
    rates = options.rates or (["100mbit"] if options.quick else ["100mbit", "1gbit"])
    only = [name for name in NAMES if name in options.only and not (options.quick and name == "ddp-dense-large")]
    data = make_data(options.data, AMAZON)
    details = {"settings": vars(settings), "nodes": nodes, "rates": rates}
    failed = False
    with labs(nodes) as names:
        if "speed" in options.parts:
            places = [(n, rate) for n in nodes for rate in rates]
            abouts = [method(settings), *["As above."] * (len(places) - 1)]
            sections = [
                speed_section(n, rate, only, names[n], data, settings, about)
                for (n, rate), about in zip(places, abouts, strict=True)
            ]
            outcomes = measure(sections, range(options.rounds or 1), options.out, details)
            failed |= any(outcome.failed for outcome in outcomes.values())
        if "curves" in options.parts and (learning := [name for name in CURVES if name in only]):
            most, slowest = max(nodes), min(rates, key=lambda rate: netlab.parse_rate(rate) or float("inf"))
            section = curve_section(most, slowest, learning, names[most], data, settings)
            outcomes = measure([section], range(1), options.out / "curves", details)
            title = f"P@1 on {most} nodes with links of {_in_words(slowest)}"
            lines = curves(dict(zip(learning, section.systems, strict=True)), outcomes)
            write_curves(options.out / "curves.svg", title, "P@1", lines)
            failed |= any(outcome.failed for outcome in outcomes.values())
    return int(failed)


@contextmanager
def labs(nodes: Sequence[int]) -> Iterator[dict[int, str]]:
    """A lab for each number of nodes, by name, until the end."""
    names = {number: f"rivals{os.getpid()}x{number}" for number in nodes}
    try:
        for number, name in names.items():
            netlab.up(number, "unlimited", name)
        yield names
    finally:
        for name in names.values():
            netlab.down(name)


def method(settings: Settings) -> str:
    """What is measured and how."""
    return (
        f"{AMAZON.features:,} features, hidden {HIDDEN}, {AMAZON.labels:,} labels: {PARAMETERS / 1e6:.0f} M "
        f"parameters. Adam at {RATE}. One thread on each of the emulated nodes, which share this machine's cores. "
        f"Timed for {settings.seconds:g} s, and at least {_steps(settings.least_steps)}, after up to three steps with "
        f"unlimited links and a write to all parameters and moments. {METHOD} {HOROVOD}"
    )


def speed_section(
    nodes: int, rate: str, only: Sequence[str], lab: str, data: Path, settings: Settings, about: str
) -> Section:
    """A row for each system on so many nodes at a rate."""
    arguments = {"rate": rate, "folder": str(data), "seconds": settings.seconds, "least_steps": settings.least_steps}
    there = {name: rival for name, rival in rivals(nodes).items() if name in only}
    found = {name: _system(rival, nodes, "speed", lab, arguments) for name, rival in there.items()}
    ours = [found[name] for name in ("default", "random") if name in found]
    theirs = [found[name] for name in ("full", "ddp-sampled", "ddp-dense", "ddp-dense-large") if name in found]
    return Section(
        f"{nodes} nodes, {_in_words(rate)}",
        about,
        list(found.values()),
        FIGURES,
        [Comparison(a, b, SPEED) for b in theirs for a in ours]
        + [Comparison(b, a, BYTES) for b in theirs for a in ours],
    )


def curve_section(nodes: int, rate: str, only: Sequence[str], lab: str, data: Path, settings: Settings) -> Section:
    """P@1 of some systems after so much training."""
    arguments = {
        "rate": rate, "folder": str(data), "seconds": settings.curve_seconds, "every": settings.curve_every,
    }  # fmt: skip
    return Section(
        f"P@1 against time: {nodes} nodes, {_in_words(rate)}",
        f"Training for {settings.curve_seconds:g} s from new weights, Adam at a constant {RATE}; the first touch of "
        "all memory and the first build of hash tables count. After every "
        f"{settings.curve_every:g} s, or after a step that takes longer, all {AMAZON.test_rows:,} test rows are "
        "predicted over all labels, which does not count.\n\n![P@1 against seconds of training](../curves.svg)",
        [_system(rivals(nodes)[name], nodes, "curve", lab, arguments) for name in only],
        LEARNED,
    )


def curves(systems: Mapping[str, System], outcomes: Mapping[System, Outcome]) -> dict[str, Points]:
    """Points of each system's run; none of those that failed."""
    figures: dict[str, Any] = {CURVES[name]: run for name, s in systems.items() for run in outcomes[s].figures}
    return {name: [(seconds, value) for seconds, value in run["curve"]] for name, run in figures.items()}


def _system(rival: Rival, nodes: int, what: str, lab: str, arguments: dict[str, Any]) -> System:
    job = {"function": f"bench.cluster.training:{what}", "lab": lab, "limit": LIMIT, "kind": rival.kind}
    return System(
        rival.name,
        "bench.cluster.jobs:run_job",
        job | rival.options | arguments,
        needs="torch" if rival.kind == "ddp" else "",
        least_bytes=nodes * rival.bytes_per_node,
        limit=LAB_LIMIT,
    )


def _nodes(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 1 for part in parts):
        raise argparse.ArgumentTypeError(f"expected numbers above 1, like 2,4, not {text!r}")
    return [int(part) for part in parts]


def _rates(text: str) -> list[str]:
    try:
        for part in text.split(","):
            netlab.parse_rate(part)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text.split(",")


def _in_words(rate: str) -> str:
    return netlab.format_rate(netlab.parse_rate(rate))


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count > 1)}"
