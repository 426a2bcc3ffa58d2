"""Measures this machine and writes one report, report.md and report.json.

    python -m bench [--quick] [--only training-speed ...] [--out build/bench]

Machines are noisy: systems run in interleaved rounds, each time in a fresh process; the report has medians with the
lowest and highest value, and ratios within a round. PyTorch is compared if installed (pip install torch==2.13.0).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

from bench.lib.measuring import exit_code, run_command
from bench.lib.measuring import measure as measure_sections
from bench.lib.sections import Section
from bench.single import (
    growth,
    hash_tables,
    interleaved,
    machine,
    phases,
    prediction,
    reading,
    sampling,
    threads,
    throughput,
)  # fmt: skip
from bench.single.plan import Plan, full_plan, quick_plan
from dslide.util.threads import available_cores

SECTIONS: dict[str, Callable[[Plan], Section]] = {  # in the order of the report; a new one is added here
    "machine": machine.section,
    "threads": threads.section,
    "training-speed": throughput.section,
    "interleaved": interleaved.section,
    "memory": throughput.memory_section,
    "phases": phases.section,
    "growth": growth.section,
    "accuracy": sampling.section,
    "prediction": prediction.section,
    "reading": reading.section,
    "hash-tables": hash_tables.section,
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
    parser.add_argument("--rounds", type=int, help="runs of every system (default: 3; quick: 2)")
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
    """Runs the named sections and writes their report; returns 1 if a system failed."""
    sections = [SECTIONS[name](plan) for name in names]
    return exit_code(measure_sections(sections, range(plan.rounds), out, {"plan": dataclasses.asdict(plan)}))


if __name__ == "__main__":
    run_command(main)
