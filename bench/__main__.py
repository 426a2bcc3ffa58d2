"""Measures this machine and writes one report, report.md and report.json.

    python -m bench [--quick] [--only training-speed ...] [--out build/bench]

Machines are noisy: systems take turns, each time in a fresh process, the report has medians with the lowest and highest
value, and ratios are taken within a round. PyTorch is compared with if it is installed (pip install torch==2.13.0).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

from dslide.threads import available_cores

from . import accuracy, growth, machine, measuring, phases, prediction, reading, renewal, threads, throughput, turns
from .plan import Plan, full_plan, quick_plan
from .report import Section

SECTIONS: dict[str, Callable[[Plan], Section]] = {  # in the order of the report; a new one is added here
    "machine": machine.section,
    "threads": threads.section,
    "training-speed": throughput.section,
    "turns": turns.section,
    "memory": throughput.memory_section,
    "phases": phases.section,
    "growth": growth.section,
    "accuracy": accuracy.section,
    "prediction": prediction.section,
    "reading": reading.section,
    "hash-tables": renewal.section,
}


def main() -> int:
    options = parse_arguments()
    plan = (quick_plan if options.quick else full_plan)(options.data, options.threads)
    given = {name: value for name in ("rounds", "seconds") if (value := getattr(options, name)) is not None}
    return measure(dataclasses.replace(plan, **given), options.only or list(SECTIONS), options.out)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few minutes: 2 rounds, shorter runs, smaller sizes")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int, help="times that every system runs (default: 3; quick: 2)")
    parser.add_argument("--seconds", type=float, help="seconds for which a run is timed (default: 8; quick: 2)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads (default: one per core)")
    parser.add_argument("--data", type=Path, default=Path("build/bench-data"), help="folder for the data")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for the report")
    options = parser.parse_args()
    for name in ("rounds", "seconds", "threads"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            parser.error(f"--{name}: expected a number above 0, not {value}")
    return options


def measure(plan: Plan, names: list[str], out: Path) -> int:
    """Runs the sections named and writes their report; returns 1 if a system failed."""
    sections = [SECTIONS[name](plan) for name in names]
    outcomes = measuring.measure(sections, range(plan.rounds), out, {"plan": dataclasses.asdict(plan)})
    return int(any(outcome.failed for outcome in outcomes.values()))


if __name__ == "__main__":
    measuring.to_end(main)
