"""What `dslide plan` foretells against what is measured on an emulated cluster: speed, bytes and memory."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from dslide.calibration import calibrate
from dslide.choices import for_data
from dslide.forecast import Forecast, forecast
from dslide.netlab import parse_rate
from dslide.plan import plan
from dslide.steptime import Link
from dslide.threads import available_cores
from dslide.trial_rows import rows_of

from ..measuring import measure
from ..network import EPOCHS
from ..report import Comparison, Figure, Section
from ..runs import System
from ..workload import AMAZON, BATCH, Shape, make_data, read_data
from .measured import network_config
from .scaling import HERE, LATENCY, QUICK

CASES = ((1, "unlimited"), (2, "unlimited"), (2, "1gbit"), (2, "100mbit"), (4, "100mbit"))  # nodes, rates of links
SPEED, BYTES = Figure("samples_per_second", "samples/s"), Figure("kilobytes", "KB a step")
MEMORY = Figure("megabytes", "MB")


def section(data: Path, shape: Shape) -> Section:
    """Each case twice: foretold and measured, in the same round."""
    systems, comparisons = [], []
    for nodes, rate in CASES:
        name = f"{nodes} node{'s' * (nodes > 1)}, {rate}"
        shared = {"data": str(data), "nodes": nodes, "rate": rate}
        foretold = System(f"plan: {name}", f"{__name__}:foretold", shared)
        measured = System(
            f"measured: {name}", f"{HERE}:trained",
            shared | {"threads": 1, "epochs": EPOCHS, "labels": shape.labels}, limit=900,
        )  # fmt: skip
        systems += [foretold, measured]
        figures = (SPEED, BYTES, MEMORY) if nodes > 1 else (SPEED, MEMORY)
        comparisons += [Comparison(foretold, measured, figure) for figure in figures]
    return Section(
        "Predictions of dslide plan",
        f"{shape.features:,} features, {shape.labels:,} labels, hidden 128, batch {BATCH}, {EPOCHS} epochs of "
        f"{shape.rows:,} rows, a thread on each node. Foretold as `dslide plan DATA --nodes N --cores 1 --bandwidth "
        "RATE` does, from a few seconds of measurement; measured on an emulated cluster on this machine. Speeds are "
        "those after the first epoch, renewals of hash tables included. Where nodes are more than the "
        f"{available_cores()} cores here, they share them, and the computing foretold is made longer by as much. KB "
        "are those that a node sends in a step, headers included; MB the most that a rank holds.",
        systems,
        [SPEED, BYTES, MEMORY],
        comparisons,
    )


def foretold(data: str, nodes: int, rate: str, seed: int) -> dict[str, float]:
    """What `dslide plan` says of training with a thread on each node."""
    rows = read_data(data)
    config = for_data(network_config(), rows)
    calibration = calibrate(config, rows_of(rows, BATCH, seed), [nodes, 1], cores=1)
    needed = plan(config, rows.features, rows.labels, rows.data_bytes, nodes, 1, True, rows.values_per_row[0])
    found = forecast(config, rows.labels, needed, calibration, Link(parse_rate(rate), LATENCY))
    found = sharing_cores(found, available_cores())
    steps = -(-len(rows) // BATCH)
    seconds = found.seconds(config, EPOCHS * steps) - found.seconds(config, steps)
    return {
        "samples_per_second": (EPOCHS - 1) * len(rows) / seconds,
        "kilobytes": found.bytes_sent / 1e3,
        "megabytes": needed.bytes_total / 1e6,
    }


def sharing_cores(found: Forecast, cores: int) -> Forecast:
    """The forecast for nodes of one core each that are emulated on so many cores: more nodes take longer by as much."""
    slower = max(1.0, found.nodes / cores)
    step = replace(found.step, compute=slower * found.step.compute)
    return replace(found, step=step, renewal=slower * found.renewal)


def run(options: argparse.Namespace) -> int:
    """Measures and writes report.md and report.json."""
    shape = QUICK if options.quick else AMAZON
    rounds = options.rounds or (1 if options.quick else 3)
    found = section(make_data(options.data, shape), shape)
    outcomes = measure([found], range(rounds), options.out, {"cases": CASES})
    return int(any(outcome.failed for outcome in outcomes.values()))
