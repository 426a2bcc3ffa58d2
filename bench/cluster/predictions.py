"""Predictions of `dslide plan` against measurements on an emulated cluster: speed, bytes and memory."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bench.cluster.labs import EPOCHS, JOB_LIMIT, TRAINED, network_config
from bench.cluster.scaling import LATENCY, QUICK
from bench.lib.measuring import exit_code, measure
from bench.lib.processes import System
from bench.lib.sections import Comparison, Metric, Section
from bench.lib.training import SPEED
from bench.lib.workload import AMAZON, BATCH, Shape, make_data, read_data
from dslide.model.defaults import resolve
from dslide.netlab import parse_rate
from dslide.planner.calibration import calibrate
from dslide.planner.forecast import Forecast, forecast
from dslide.planner.memory import plan
from dslide.planner.step_time import NetworkSpeed
from dslide.planner.trial_rows import rows_of
from dslide.util.threads import available_cores
from dslide.util.units import counted

CASES = ((1, "unlimited"), (2, "unlimited"), (2, "1gbit"), (2, "100mbit"), (4, "100mbit"))  # nodes, rates of links
BYTES, MEMORY = Metric("kilobytes", "KB a step"), Metric("megabytes", "MB")


def section(data: Path, shape: Shape) -> Section:
    """Each case twice in a round: predicted and measured."""
    systems, comparisons = [], []
    for nodes, rate in CASES:
        name = f"{counted(nodes, 'node')}, {rate}"
        shared = {"folder": str(data), "nodes": nodes, "rate": rate}
        predicted = System(f"plan: {name}", f"{__name__}:predicted", shared)
        measured = System(f"measured: {name}", TRAINED, shared | {"epochs": EPOCHS}, limit=JOB_LIMIT)
        systems += [predicted, measured]
        metrics = (SPEED, BYTES, MEMORY) if nodes > 1 else (SPEED, MEMORY)
        comparisons += [Comparison(predicted, measured, metric) for metric in metrics]
    return Section(
        "Predictions of dslide plan",
        f"{shape.features:,} features, {shape.labels:,} labels, hidden 128, batch {BATCH}, {EPOCHS} epochs of "
        f"{shape.rows:,} rows, a thread on each node. Predicted as by `dslide plan DATA --nodes N --cores 1 "
        "--bandwidth RATE`, from a few seconds of measurement; measured on an emulated cluster on this machine. "
        "Speeds are those after the first epoch, rebuilds of hash tables included. More nodes than the "
        f"{available_cores()} cores here share them, and the predicted compute time is scaled accordingly. KB are "
        "those that a node sends in a step, headers included; MB the peak memory of a rank.",
        systems,
        [SPEED, BYTES, MEMORY],
        comparisons,
    )


def predicted(folder: str, nodes: int, rate: str, seed: int) -> dict[str, float]:
    """The predictions of `dslide plan` for training with a thread on each node."""
    rows = read_data(folder)
    config = resolve(network_config(), rows.labels, rows)
    calibration = calibrate(lambda nodes: config, rows_of(rows, BATCH, seed), [nodes, 1], cores=1)
    needed = plan(config, rows.features, rows.labels, rows.data_bytes, nodes, 1, True, rows.values_per_row[0])
    found = forecast(config, rows.labels, needed, calibration, NetworkSpeed(parse_rate(rate), LATENCY))
    found = sharing_cores(found, available_cores())
    steps = -(-len(rows) // BATCH)
    seconds = found.seconds(config, EPOCHS * steps) - found.seconds(config, steps)
    return {
        "samples_per_second": (EPOCHS - 1) * len(rows) / seconds,
        "kilobytes": found.bytes_sent / 1e3,
        "megabytes": needed.bytes_total / 1e6,
    }


def sharing_cores(found: Forecast, cores: int) -> Forecast:
    """The forecast for nodes of one core each that are emulated on so many cores: more nodes than cores are slower."""
    slower = max(1.0, found.nodes / cores)
    step = replace(found.step, compute=slower * found.step.compute)
    return replace(found, step=step, rebuild=slower * found.rebuild)


def run(options: argparse.Namespace) -> int:
    """Measures and writes report.md and report.json."""
    shape = QUICK if options.quick else AMAZON
    rounds = options.rounds or (1 if options.quick else 3)
    found = section(make_data(options.data, shape), shape)
    return exit_code(measure([found], range(rounds), options.out, {"cases": CASES}))
