"""Training at several link speeds, in several wire formats; report.md and report.json."""

from __future__ import annotations

import argparse

from bench.cluster.labs import EPOCHS, JOB_LIMIT, TRAINED
from bench.lib.measuring import exit_code, measure
from bench.lib.processes import System
from bench.lib.sections import Comparison, Metric, Section
from bench.lib.training import SPEED
from bench.lib.workload import AMAZON, BATCH, HIDDEN, TINY, make_data
from dslide import netlab

METRICS = [
    SPEED,
    Metric("waiting", "waiting", ".0%"),
    Metric("overlap", "overlapped", ".0%"),
    Metric("kilobytes", "KB a step"),
    Metric("counted_kilobytes", "counted"),
    Metric("message_kilobytes", "by formula"),
    Metric("megabytes", "MB"),
]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=4, help="nodes, with a rank on each (default: 4)")
    parser.add_argument("--rates", default="unlimited,1gbit,100mbit", help="link speeds; the first is compared with")
    parser.add_argument("--wires", default="float32,bf16,int8", help="wire formats")


def run(options: argparse.Namespace) -> int:
    """The experiment; `options` as in bench/cluster/__main__.py."""
    netlab.status("bench")  # LabError at once if there can be no labs
    rates, wires = options.rates.split(","), options.wires.split(",")
    for rate in rates:
        netlab.parse_rate(rate)
    shape, nodes = TINY if options.quick else AMAZON, options.nodes
    work = {"folder": str(make_data(options.data, shape)), "nodes": nodes, "epochs": EPOCHS}
    systems = {
        (wire, rate): System(f"{wire}, {rate}", TRAINED, work | {"wire": wire, "rate": rate}, limit=JOB_LIMIT)
        for wire in wires
        for rate in rates
    }
    section = Section(
        "Link speeds and wire formats",
        f"{nodes} emulated nodes of one thread each, {shape.features:,} features, {shape.labels:,} labels, hidden "
        f"{HIDDEN}, batch {BATCH}. Speed is the median of the epochs after the first, which builds the hash tables. "
        "Waiting is the share of time in which ranks wait for others, which includes waiting for a core if there are "
        "more nodes than cores. KB are those that a node sends in a step: on its interface, as counted by dslide, and "
        "by the formula of `dslide plan`. MB are the peak memory of a rank.",
        list(systems.values()),
        METRICS,
        [Comparison(systems[wire, rate], systems[wire, rates[0]], SPEED) for wire in wires for rate in rates[1:]],
    )
    rounds = options.rounds or (1 if options.quick else 3)
    return exit_code(measure([section], range(rounds), options.out, {"nodes": nodes}))
