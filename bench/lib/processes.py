"""Systems run in interleaved rounds, each time in a fresh process: a slow minute of the machine affects all of them,
and results of one round can be compared."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dslide.util.atomic import AtomicFile
from dslide.util.memory import available_bytes
from dslide.util.units import format_bytes

ROOT = Path(__file__).resolve().parents[2]  # where `python -m bench` runs


@dataclass(frozen=True)
class System:
    """A row of the report: a function that is called in a process of its own and returns its results."""

    name: str
    function: str  # module:function; it takes `seed`, another one in each round, besides `arguments`
    arguments: dict[str, Any] = field(hash=False)  # JSON values
    needs: str = ""  # package that it requires
    least_bytes: int = 0  # of available memory, without which it is skipped
    limit: float = 600  # seconds after which a run is killed
    python: str = ""  # the Python that must have the package; empty: this one
    kept: str = ""  # folder in which the results of each seed are kept, and found again; empty: every run is made


@dataclass
class Outcome:
    """The results of a system in each round, or why there are none."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    problem: str = ""  # not installed, skipped or failed, with the reason; the system is not run again
    failed: bool = False


def run_rounds(
    systems: Iterable[System], seeds: Sequence[int], log: Callable[[str], None] = lambda line: None
) -> dict[System, Outcome]:
    """Runs every system once in each round, of which there is one for each seed; a system listed twice runs once."""
    outcomes = {system: Outcome() for system in systems}
    for number, seed in enumerate(seeds, 1):
        for system, outcome in outcomes.items():
            if not outcome.problem:
                outcome.problem = obstacle(system)
            if outcome.problem:
                continue
            where = Path(system.kept).parent.name if system.kept else system.function.split(":")[0]
            log(f"round {number} of {len(seeds)}: waiting for {system.name} ({where}, at most {system.limit:g} s)")
            run(system, seed, outcome)
            if outcome.failed:
                log(f"{system.name} {outcome.problem}")
    return outcomes


def obstacle(system: System) -> str:
    """Why a system can't run here; empty if it can."""
    if system.needs and not installed(system.needs, system.python or sys.executable):
        return "not installed"
    available = available_bytes()
    if available < system.least_bytes:
        needed = format_bytes(system.least_bytes)
        return f"skipped: needs {needed} of memory, and {format_bytes(available)} are available"
    return ""


@functools.cache
def installed(package: str, python: str) -> bool:
    """Whether a Python has a package; it is not imported."""
    test = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", test], capture_output=True, check=False).returncode == 0


def run(system: System, seed: int, outcome: Outcome) -> None:
    """One run in a fresh process, unless its results are kept; they, or its last line of errors, are added to the
    outcome."""
    kept = Path(system.kept, f"{seed}.json") if system.kept else None
    if kept and kept.exists():
        outcome.rounds.append(json.loads(kept.read_text()))
        return
    arguments = json.dumps(system.arguments | {"seed": seed})
    command = [sys.executable, "-m", "bench.lib.worker", system.function, arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=system.limit, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired:
        outcome.failed, outcome.problem = True, f"failed: no result after {system.limit:g} s"
        return
    if done.returncode:
        errors = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        outcome.failed, outcome.problem = True, f"failed: {errors[-1].strip()}"
        return
    result = done.stdout.splitlines()[-1]
    outcome.rounds.append(json.loads(result))
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with AtomicFile(kept, "utf-8") as file:
            file.write(result)
