"""Emulated clusters (dslide netlab), and training on them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.lib.commands import as_arguments, read_records, read_summary
from bench.lib.workload import BATCH, NETWORK
from dslide import Config, netlab
from dslide.planner.traffic import bytes_on_wire, bytes_per_step

EPOCHS = 3
LIMIT = 600  # seconds for one run
TRAINED, JOB_LIMIT = f"{__name__}:trained", LIMIT + 300  # for systems


@contextmanager
def lab(nodes: int, rate: str = "unlimited", latency: str = "0ms") -> Iterator[str]:
    """A lab that is removed at the end; its name."""
    name = f"bench{os.getpid()}x{nodes}"
    netlab.up(nodes, rate, name, latency)
    try:
        yield name
    finally:
        netlab.down(name)


def network_config(**options: Any) -> Config:
    """The options of all runs, with changes."""
    return Config(**NETWORK | {"batch_size": BATCH, "threads": 1} | options)


def trained(
    folder: str,
    nodes: int,
    rate: str,
    epochs: int,
    seed: int,
    tested: bool = False,
    latency: str = "0ms",
    **options: Any,
) -> dict[str, float]:
    """`dslide train` on a lab of its own, with these options: speed after the first epoch, in which hash tables are
    built; bytes that a node sends in a step, on its interface, as counted by dslide, and by the formulas for messages
    and for the wire; peak memory of a rank; share of time in which ranks wait for others; and P@1 if `tested`."""
    data = Path(folder)
    given = NETWORK | {"batch_size": BATCH, "threads": 1, "epochs": epochs, "seed": seed} | options
    given |= {"test": data / "test.txt"} if tested else {}
    with tempfile.TemporaryDirectory() as temporary, lab(nodes, rate, latency) as name:
        run = Path(temporary) / "run"
        words = [str(data / "train.txt"), f"--out={run}", "--quiet", *as_arguments(given)]
        command = [sys.executable, "-m", "dslide.cli", "train", *words]
        result = netlab.run(command, name=name, limit=LIMIT, stdout=subprocess.DEVNULL)
        if result.code != 0:
            raise SystemExit(f"the run failed with code {result.code}")
        summary, log = read_summary(run), read_records(run / "log.jsonl")
    speeds = [record["samples_per_second"] for record in log if record["record"] == "epoch"]
    sent = statistics.mean(node.sent for node in result.traffic) if nodes > 1 else 0.0  # alone: only to the launcher
    config, labels = network_config(**options), summary["labels"]
    return {
        "samples_per_second": statistics.median(speeds[1:]),
        "kilobytes": sent / summary["steps"] / 1e3,
        "counted_kilobytes": summary["bytes_sent_per_step"] / 1e3,
        "message_kilobytes": bytes_per_step(config, labels, nodes) / 1e3,
        "wire_kilobytes": bytes_on_wire(config, labels, nodes) / 1e3,
        "megabytes": summary["peak_rss_bytes"] / 1e6,
        "planned_megabytes": summary["planned_bytes"] / 1e6,
        "waiting": summary["comm_seconds"] / summary["seconds"],
        "overlap": summary["overlap"],
    } | ({"p_at_1": summary["p_at_1"]} if tested else {})
