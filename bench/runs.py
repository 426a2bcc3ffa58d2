"""Systems take turns, round by round, each time in a fresh process: a slow minute hits all of them, and figures of one
round can be compared."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dslide.memory import available_bytes, format_bytes

ROOT = Path(__file__).resolve().parent.parent  # where `python -m bench` runs


@dataclass(frozen=True)
class System:
    """A row of the report: a function that is called in a process of its own and returns its figures."""

    name: str
    function: str  # module:function; it takes `seed`, another one in each round, besides `arguments`
    arguments: dict[str, Any] = field(hash=False)  # plain values
    needs: str = ""  # the package that it can't run without
    least_bytes: int = 0  # of available memory, without which it is skipped
    limit: float = 600  # seconds after which a run is given up


@dataclass
class Outcome:
    """What came of a system's runs: figures of each round, or why there are none."""

    figures: list[dict[str, float]] = field(default_factory=list)
    problem: str = ""  # not installed, skipped or failed, with the reason; then the system runs no more
    failed: bool = False


def run_rounds(
    systems: Iterable[System], seeds: Sequence[int], say: Callable[[str], None] = lambda line: None
) -> dict[System, Outcome]:
    """Runs every system once a round, of which there is one for each seed; one that is listed twice runs once."""
    outcomes = {system: Outcome() for system in systems}
    for number, seed in enumerate(seeds, 1):
        for system, outcome in outcomes.items():
            if not outcome.problem:
                outcome.problem = obstacle(system)
            if outcome.problem:
                continue
            where = system.function.split(":")[0]
            say(f"round {number} of {len(seeds)}: waiting for {system.name} ({where}, at most {system.limit:g} s)")
            run(system, seed, outcome)
            if outcome.failed:
                say(f"{system.name} {outcome.problem}")
    return outcomes


def obstacle(system: System) -> str:
    """Why a system can't be run here; empty if it can."""
    if system.needs and importlib.util.find_spec(system.needs) is None:
        return "not installed"
    available = available_bytes()
    if available < system.least_bytes:
        needed = format_bytes(system.least_bytes)
        return f"skipped: needs {needed} of memory, and {format_bytes(available)} are available"
    return ""


def run(system: System, seed: int, outcome: Outcome) -> None:
    """One run in a fresh process; its figures, or its last error line, go to the outcome."""
    arguments = json.dumps(system.arguments | {"seed": seed})
    command = [sys.executable, "-m", "bench.worker", system.function, arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=system.limit, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired:
        outcome.failed, outcome.problem = True, f"failed: no result after {system.limit:g} s"
        return
    if done.returncode:
        errors = done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"]
        outcome.failed, outcome.problem = True, f"failed: {errors[-1].strip()}"
        return
    outcome.figures.append(json.loads(done.stdout.splitlines()[-1]))
