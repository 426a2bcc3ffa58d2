"""Measures this machine and writes one report, report.md and report.json.

    python -m bench [--quick] [--only training-speed ...] [--out build/bench]

Machines are noisy: systems take turns, each time in a fresh process, the report has medians with the lowest and highest
value, and ratios are taken within a round. PyTorch is compared with if it is installed (pip install torch==2.13.0).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dslide.threads import available_cores

from . import accuracy, growth, machine, prediction, reading, renewal, throughput
from .plan import Plan, full_plan, quick_plan
from .report import Section, as_json, markdown
from .runs import run_rounds

SECTIONS: dict[str, Callable[[Plan], Section]] = {  # in the order of the report; a new one is added here
    "machine": machine.section,
    "threads": throughput.threads_section,
    "training-speed": throughput.section,
    "memory": throughput.memory_section,
    "growth": growth.section,
    "accuracy": accuracy.section,
    "prediction": prediction.section,
    "reading": reading.section,
    "hash-tables": renewal.section,
}

MOST_DISTURBANCE = 0.1  # on a busy machine PyTorch was seen to be a quarter as fast on 2 threads as on 1


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
    start, disturbance = time.perf_counter(), machine.Disturbance()
    sections = [SECTIONS[name](plan) for name in names]
    systems = [system for section in sections for system in section.systems]
    outcomes = run_rounds(systems, plan.rounds, lambda line: print(line, file=sys.stderr, flush=True))
    minutes = (time.perf_counter() - start) / 60
    others = disturbance.share()
    about = f"Medians (lowest to highest) over {plan.rounds} rounds, taken in {minutes:.1f} minutes."
    if others is not None:
        about += f" Other programs took {others:.0%} of the cores' time meanwhile."
        if others > MOST_DISTURBANCE:
            about += " **That is too much: neither figures nor ratios are to be trusted.**"
    report = markdown(sections, outcomes, about)
    details = {
        "plan": dataclasses.asdict(plan),
        "machine": machine.facts(),
        "minutes": minutes,
        "share_of_others": others,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(report)
    (out / "report.json").write_text(json.dumps(as_json(sections, outcomes, details), indent=1, default=str) + "\n")
    print(report)
    print(f"written to {out}/report.md and report.json", file=sys.stderr)
    return int(any(outcome.failed for outcome in outcomes.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: no report was written")
