"""Runs every system in turn, several times over, each time in a fresh process, and prints one table.

    python -m bench [--rounds 3] [--seconds 8] [--threads 2] [--data FOLDER] [--json FILE]

Machines are noisy: systems take turns, so that a slow minute hits all of them, and the table has medians with the
lowest and highest value. PyTorch is compared with if it is installed (pip install torch==2.13.0).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from dslide import _core
from dslide.threads import available_cores

from .systems import SYSTEMS
from .workload import FEATURES, HIDDEN, LABELS, make_data

TIMEOUT = 600  # seconds for one run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that every system runs (default: 3)")
    parser.add_argument("--seconds", type=float, default=8, help="seconds for which a run is timed (default: 8)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads (default: one per core)")
    parser.add_argument("--data", type=Path, default=Path("build/bench-data"), help="folder for the data")
    parser.add_argument("--json", type=Path, help="file to write all figures to as well")
    options = parser.parse_args()

    make_data(options.data)
    names = list(SYSTEMS)
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed, so it is left out.\n")
        names = [name for name in names if not name.startswith("PyTorch")]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in names:
            print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
            runs[name].append(run(name, options))
    about = {
        "processor": platform.processor() or platform.machine(),
        "isa": _core.isa(),
        "threads": options.threads,
        "features": FEATURES,
        "labels": LABELS,
        "hidden": HIDDEN,
    }
    print(", ".join(f"{key}: {value}" for key, value in about.items()) + "\n")
    print(table(runs))
    if options.json:
        options.json.write_text(json.dumps({"about": about, "runs": runs}, indent=1) + "\n")


def run(name: str, options: argparse.Namespace) -> dict[str, float]:
    arguments = [name, str(options.data), str(options.threads), str(options.seconds)]
    command = [sys.executable, "-m", "bench.systems", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def table(runs: dict[str, list[dict[str, float]]]) -> str:
    lines = ["| system | samples/s: median (lowest to highest) | active outputs | peak memory |", "|---|---|---|---|"]
    for name, results in runs.items():
        speeds = [result["samples_per_second"] for result in results]
        spread = f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})"
        memory = max(result["peak_rss_bytes"] for result in results) / 1e9
        lines.append(f"| {name} | {spread} | {results[0]['active']:,.0f} | {memory:.2f} GB |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
