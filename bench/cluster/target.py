"""Time until a network of stated accuracy is there: `dslide train` with defaults on real data, one node and two, each
with one thread, on emulated links with a latency."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.cluster.labs import JOB_LIMIT, LIMIT, lab
from bench.lib.commands import read_summary
from bench.lib.measuring import exit_code, measure
from bench.lib.processes import System
from bench.lib.sections import Comparison, Metric, Section
from bench.lib.workload import TINY, make_data
from dslide import netlab

RATE, LATENCY, NODES = "1gbit", "0.2ms", (1, 2)
SECONDS = Metric("seconds", "seconds of the whole command", ".1f")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sets", type=Path, nargs="+", help="folders with train.txt and test.txt")


def run(options: argparse.Namespace) -> int:
    """Measures and writes report.md and report.json."""
    netlab.status("bench")  # LabError at once if there can be no labs
    folders = [path.resolve() for path in options.sets or [make_data(options.data, TINY)]]
    systems = {
        (folder, nodes): System(
            f"{folder.name}, {nodes} nodes" if nodes > 1 else f"{folder.name}, 1 node", f"{__name__}:trained",
            {"folder": str(folder), "nodes": nodes}, limit=JOB_LIMIT,
        )
        for folder in folders for nodes in NODES
    }  # fmt: skip
    section = Section(
        "Time to accuracy",
        "`dslide train train.txt --test test.txt` with defaults, one thread a node, links of 1 Gbit/s with .2 ms: "
        "reading, training, classifiers, test and saving.",
        list(systems.values()),
        [SECONDS, Metric("training", "of training", ".1f"), *(Metric(f"p_at_{k}", f"P@{k}", ".4f") for k in (1, 3, 5))],
        [
            Comparison(systems[folder, NODES[0]], systems[folder, nodes], SECONDS)
            for folder in folders for nodes in NODES[1:]
        ],
    )  # fmt: skip
    return exit_code(measure([section], range(options.rounds or (1 if options.quick else 3)), options.out, {}))


def trained(folder: str, nodes: int, seed: int) -> dict[str, float]:
    """The command on a lab of its own."""
    data = Path(folder)
    with tempfile.TemporaryDirectory() as temporary, lab(nodes, RATE, LATENCY) as name:
        out = Path(temporary) / "run"
        command = [sys.executable, "-m", "dslide.cli", "train", str(data / "train.txt"), f"--test={data / 'test.txt'}"]
        command += [f"--out={out}", f"--seed={seed}", "--threads=1", "--quiet"]
        begin = time.monotonic()
        result = netlab.run(command, name=name, limit=LIMIT, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - begin
        if result.code != 0:
            raise SystemExit(f"the run failed with code {result.code}")
        summary = read_summary(out)
    found = {f"p_at_{k}": float(summary[f"p_at_{k}"]) for k in (1, 3, 5)}
    return found | {"seconds": seconds, "training": float(summary["seconds"])}
