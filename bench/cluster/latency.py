"""Two nodes on links with a latency, as offices and clouds have them, over one node."""

from __future__ import annotations

import argparse
from typing import Any

from bench.cluster.labs import JOB_LIMIT, TRAINED
from bench.lib.measuring import exit_code, measure
from bench.lib.processes import System
from bench.lib.sections import Comparison, Metric, Section
from bench.lib.training import SPEED
from bench.lib.workload import AMAZON, BATCH, NETWORK, TINY, make_data
from dslide import Config, netlab

LINKS = [  # rate and latency of two nodes, and the format on the wire
    ("unlimited", "0ms", "bf16"), ("1gbit", "0.2ms", "bf16"), ("1gbit", "0.2ms", "int8"), ("1gbit", "1ms", "bf16"),
    ("100mbit", "0.2ms", "bf16"), ("100mbit", "0.2ms", "int8"),
]  # fmt: skip
# The network of the defaults, without what comes after the steps.
OPTIONS: dict[str, Any] = {name: getattr(Config, name) for name in NETWORK} | {
    "epochs": 2, "validation": 0, "linear_negatives": 0,
}  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Measures and writes report.md and report.json."""
    netlab.status("bench")  # LabError at once if there can be no labs
    shape = TINY if options.quick else AMAZON
    work = OPTIONS | {"folder": str(make_data(options.data, shape))}
    one = System("1 node", TRAINED, work | {"nodes": 1, "rate": "unlimited"}, limit=JOB_LIMIT)
    two = [
        System(
            f"2 nodes, {rate}, {latency}, {wire}", TRAINED,
            work | {"nodes": 2, "rate": rate, "latency": latency, "wire": wire}, limit=JOB_LIMIT,
        )
        for rate, latency, wire in LINKS
    ]  # fmt: skip
    section = Section(
        "Two nodes over one, with latency",
        f"Defaults, {shape.features:,} features, {shape.labels:,} labels, batch {BATCH}, one thread a node, the second "
        f"of two epochs of {shape.rows:,} rows. Waiting is the share of time in which ranks wait for others.",
        [one, *two],
        [SPEED, Metric("waiting", "waiting", ".0%"), Metric("kilobytes", "KB a step")],
        [Comparison(system, one, SPEED) for system in two],
    )
    rounds = options.rounds or (1 if options.quick else 3)
    return exit_code(measure([section], range(rounds), options.out, {}))
