"""dslide beside PyTorch's data-parallel training on slow links, Amazon-670K's shape.

    sudo python -m bench.cluster peers [--quick] [--rounds 1] [--nodes 2,4] [--rates 100mbit,1gbit]
                                       [--only default ddp-dense ...] [--parts speed,curves]

Writes speed, bytes, waiting and memory of every system to report.md and report.json, and P@1 over time, with the most
nodes on the slowest links, to curves/report.md and curves.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cluster.labs import lab
from bench.lib.charts import Points, write_chart
from bench.lib.measuring import exit_code, measure
from bench.lib.processes import Outcome, System
from bench.lib.sections import Comparison, Metric, Section
from bench.lib.workload import AMAZON, BATCH, HIDDEN, NEGATIVES, RATE, make_data
from dslide import netlab
from dslide.errors import ConfigError
from dslide.util.units import counted

SPEED = Metric("samples_per_second", "samples/s", ",.1f")
BYTES = Metric("kilobytes_per_sample", "KB a sample on the wire", ",.2f")
METRICS = [
    SPEED,
    BYTES,
    Metric("megabytes_per_step", "MB a node sends in a step", ",.3f"),
    Metric("waiting", "waiting for the network, %"),
    Metric("peak_gigabytes", "peak memory of a node, GB", ".2f"),
    Metric("step_seconds", "seconds a step", ".3f"),
    Metric("steps", "steps timed"),
]
LEARNED = [
    Metric("p_at_1", "P@1 at the end", ".4f"),
    Metric("seconds", "seconds of training", ",.1f"),
    Metric("steps", "steps"),
]
LIMIT = 600.0  # seconds for one job; a step of a full softmax takes about one minute at 100 Mbit/s
SYSTEM_LIMIT = LIMIT + 30  # leaves time to end a job at its limit
PROGRAM_BYTES = 700 << 20  # of a rank of PyTorch besides parameters, gradients, moments and logits
DENSE_BATCH, LARGE_BATCH = 128, 512  # of each rank
PARTS = ("speed", "curves")
PARAMETERS = HIDDEN * (AMAZON.features + AMAZON.labels) + AMAZON.labels
METHOD = (
    "Denormal numbers are flushed to 0 in every system. Bytes are those that the interfaces of all nodes together "
    "sent in the timed steps, headers included. In dslide, waiting is the share of time in which a rank waits for "
    "others: for the link or, with more nodes than cores, for a core; in PyTorch it is the additional time of a step "
    "over one without exchange (no_sync), measured afterwards, so that the summing of gradients is included. Each rank "
    "of PyTorch has a copy of the network and batches of its own; DistributedDataParallel over gloo sums either dense "
    "gradients of all parameters, with fused Adam, or sparse ones, with EmbeddingBag, SparseAdam and the same "
    "negatives on all ranks. Ranks begin with equal weights, which are not sent. dslide with all outputs is sharded "
    "over nodes as always, but dense."
)
HOROVOD = (
    "Horovod 0.28.1 is not included: its source on PyPI does not build with PyTorch 2.13, whose headers need C++17 "
    "while Horovod's build sets C++14 (and CMake 4 refuses its copy of gloo). DistributedDataParallel over gloo works "
    "alike: both all-reduce dense gradients."
)


@dataclass(frozen=True)
class Setup:
    """A system: its name in tables, kind and options of its ranks, and the memory that each node needs."""

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


def setups(nodes: int) -> dict[str, Setup]:
    """The systems on so many nodes, by their names for `--only`."""

    def ddp(batch: int, negatives: int = 0) -> Setup:
        what = f"{negatives:,} random negatives" if negatives else "all outputs"
        logits = 0 if negatives else 2 * batch * AMAZON.labels  # and their gradient
        memory = PROGRAM_BYTES + 4 * (4 * PARAMETERS + logits)
        options = {"batch_size": batch, "negatives": negatives}
        return Setup(f"PyTorch DDP, {what}, batch {nodes} x {batch}", "ddp", options, memory)

    def dslide(what: str, batch: int, **options: Any) -> Setup:
        return Setup(f"dslide, {what}, batch {batch:,}", "dslide", {"batch_size": batch, **options})

    # A batch is that of all ranks in dslide, and that of one rank in PyTorch: the two with random negatives train on
    # the same number of rows in a step.
    found = {
        "default": dslide("default sampling", BATCH),
        "random": dslide(f"{NEGATIVES:,} random negatives", nodes * BATCH, output="random", random_negatives=NEGATIVES),
        "full": dslide("all outputs", BATCH, output="full", loss="softmax"),
        "ddp-sampled": ddp(BATCH, NEGATIVES),
        "ddp-dense": ddp(DENSE_BATCH),
    }
    if nodes == 2:  # four would need 20 GB, by `bytes_per_node`
        found["ddp-dense-large"] = ddp(LARGE_BATCH)
    return found


CURVES = {  # systems in the chart, and their short names there
    "default": "dslide",
    "random": "dslide, random negatives",
    "ddp-sampled": "DDP, random negatives",
    "ddp-dense": "DDP, all outputs",
}
NAMES = tuple(setups(2))


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
    code = 0
    with ExitStack() as labs:
        names = {number: labs.enter_context(lab(number)) for number in nodes}
        if "speed" in options.parts:
            places = [(n, rate) for n in nodes for rate in rates]
            abouts = [method(settings), *["As above."] * (len(places) - 1)]
            sections = [
                speed_section(n, rate, only, names[n], data, settings, about)
                for (n, rate), about in zip(places, abouts, strict=True)
            ]
            outcomes = measure(sections, range(options.rounds or 1), options.out, details)
            code |= exit_code(outcomes)
        if "curves" in options.parts and (learning := [name for name in CURVES if name in only]):
            most, slowest = max(nodes), min(rates, key=lambda rate: netlab.parse_rate(rate) or float("inf"))
            section = curve_section(most, slowest, learning, names[most], data, settings)
            outcomes = measure([section], range(1), options.out / "curves", details)
            title = f"P@1 on {most} nodes with links of {_rate_text(slowest)}"
            lines = curves(dict(zip(learning, section.systems, strict=True)), outcomes)
            write_chart(options.out / "curves.svg", title, "P@1", lines)
            code |= exit_code(outcomes)
    return code


def method(settings: Settings) -> str:
    """What is measured, and how."""
    return (
        f"{AMAZON.features:,} features, hidden {HIDDEN}, {AMAZON.labels:,} labels: {PARAMETERS / 1e6:.0f} M "
        f"parameters. Adam at {RATE}. One thread on each of the emulated nodes, which share this machine's cores. "
        f"Timed for {settings.seconds:g} s, and at least {counted(settings.least_steps, 'step')}, after up to three "
        f"steps with unlimited links and a write to all parameters and moments. {METHOD} {HOROVOD}"
    )


def speed_section(
    nodes: int, rate: str, only: Sequence[str], lab: str, data: Path, settings: Settings, about: str
) -> Section:
    """A row for each system on so many nodes at a link rate."""
    arguments = {"rate": rate, "folder": str(data), "seconds": settings.seconds, "least_steps": settings.least_steps}
    chosen = {name: setup for name, setup in setups(nodes).items() if name in only}
    found = {name: _system(setup, nodes, "speed", lab, arguments) for name, setup in chosen.items()}
    ours = [found[name] for name in ("default", "random") if name in found]
    theirs = [found[name] for name in ("full", "ddp-sampled", "ddp-dense", "ddp-dense-large") if name in found]
    return Section(
        f"{nodes} nodes, {_rate_text(rate)}",
        about,
        list(found.values()),
        METRICS,
        [Comparison(a, b, SPEED) for b in theirs for a in ours]
        + [Comparison(b, a, BYTES) for b in theirs for a in ours],
    )


def curve_section(nodes: int, rate: str, only: Sequence[str], lab: str, data: Path, settings: Settings) -> Section:
    """P@1 of some systems over time."""
    arguments = {
        "rate": rate, "folder": str(data), "seconds": settings.curve_seconds, "every": settings.curve_every,
    }  # fmt: skip
    return Section(
        f"P@1 over time: {nodes} nodes, {_rate_text(rate)}",
        f"Training for {settings.curve_seconds:g} s from new weights, Adam at a constant {RATE}; memory allocation and "
        "the first build of hash tables are included. After every "
        f"{settings.curve_every:g} s, or after a step that takes longer, all {AMAZON.test_rows:,} test rows are "
        "predicted over all labels, which is not timed.\n\n![P@1 over seconds of training](../curves.svg)",
        [_system(setups(nodes)[name], nodes, "curve", lab, arguments) for name in only],
        LEARNED,
    )


def curves(systems: Mapping[str, System], outcomes: Mapping[System, Outcome]) -> dict[str, Points]:
    """Points of each system's run; none of those that failed."""
    runs: dict[str, Any] = {CURVES[name]: run for name, s in systems.items() for run in outcomes[s].rounds}
    return {name: [(seconds, value) for seconds, value in run["curve"]] for name, run in runs.items()}


def _system(setup: Setup, nodes: int, what: str, lab: str, arguments: dict[str, Any]) -> System:
    job = {"function": f"bench.cluster.training:{what}", "lab": lab, "limit": LIMIT, "kind": setup.kind}
    return System(
        setup.name,
        "bench.cluster.jobs:run_job",
        job | setup.options | arguments,
        needs="torch" if setup.kind == "ddp" else "",
        least_bytes=nodes * setup.bytes_per_node,
        limit=SYSTEM_LIMIT,
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


def _rate_text(rate: str) -> str:
    return netlab.format_rate(netlab.parse_rate(rate))
