"""What a soak (soak.py) came to: from faults and the records of a run to recoveries, and from those to a report."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .report import table

Record = dict[str, Any]  # a line of log.jsonl


@dataclass(frozen=True)
class Fault:
    """Something done to a run, at a time in seconds since 1970."""

    kind: str
    time: float


@dataclass(frozen=True)
class Recovery:
    """How training went on after a fault."""

    kind: str
    seconds: float  # from the fault to the end of the first step
    redone: int  # steps that had been done before


def read_records(path: Path) -> list[Record]:
    """The lines of a file of JSON objects, none if it is not there. One that a fault has cut off is left out."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def recoveries(faults: Sequence[Fault], log: Sequence[Record]) -> list[Recovery | None]:
    """One for each fault, None if training did not start again between it and the next. The log tells about once a
    second how far training was: steps after that are not known to be done again."""
    found: list[Recovery | None] = []
    for number, fault in enumerate(faults):
        end = faults[number + 1].time if number + 1 < len(faults) else float("inf")
        before = [record for record in log if record["time"] <= fault.time]
        after = [record for record in log if fault.time < record["time"] < end]
        at = next((i for i, record in enumerate(after) if record["record"] == "start"), len(after))
        stepped = [record for record in after[at:] if record["record"] in ("step", "end")]
        if not stepped:
            found.append(None)
            continue
        done = max((record["step"] for record in (*before[-1:], *after[:at])), default=0)
        found.append(Recovery(fault.kind, stepped[0]["time"] - fault.time, max(0, done - after[at]["step"])))
    return found


@dataclass(frozen=True)
class Soak:
    """A disturbed run, and the same one undisturbed if there was one."""

    faults: Sequence[Fault]
    recoveries: Sequence[Recovery | None]  # of each fault
    total_steps: int  # that the run was to have
    disturbed: Mapping[str, Any]  # its summary.json, and wall_seconds; without steps if it did not come to its end
    undisturbed: Mapping[str, Any] | None
    processes_left: Sequence[str]
    incomplete_checkpoints: int
    tracebacks: int

    @property
    def steps_lost(self) -> int:
        whole = self.undisturbed["steps"] if self.undisturbed else self.total_steps
        return int(whole - self.disturbed.get("steps", 0))

    @property
    def failed(self) -> bool:
        return bool(self.steps_lost or self.processes_left)

    def by_kind(self) -> dict[str, dict[str, Any]]:
        found = {}
        for kind in sorted({fault.kind for fault in self.faults}):
            of_kind = [recovery for recovery in self.recoveries if recovery and recovery.kind == kind]
            seconds = [recovery.seconds for recovery in of_kind]
            redone = [recovery.redone for recovery in of_kind]
            found[kind] = {
                "faults": sum(fault.kind == kind for fault in self.faults),
                "recoveries": len(of_kind),
                "seconds_median": statistics.median(seconds) if seconds else None,
                "seconds_most": max(seconds, default=None),
                "steps_redone": sum(redone),
                "steps_redone_most": max(redone, default=None),
            }
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "faults": [vars(fault) for fault in self.faults],
            "recoveries": [recovery and vars(recovery) for recovery in self.recoveries],
            "by_kind": self.by_kind(),
            "steps": self.total_steps,
            "steps_lost": self.steps_lost,
            "processes_left": list(self.processes_left),
            "incomplete_checkpoints": self.incomplete_checkpoints,
            "tracebacks": self.tracebacks,
            "disturbed": dict(self.disturbed),
            "undisturbed": self.undisturbed and dict(self.undisturbed),
        }

    def markdown(self, about: str) -> str:
        kinds = [[kind, *(_cell(value) for value in figures.values())] for kind, figures in self.by_kind().items()]
        heading = ["fault", "times", "started again", "seconds to a step: median", "most"]
        heading += ["steps done again", "most for one fault"]
        known = [recovery for recovery in self.recoveries if recovery]
        redone = [recovery.redone for recovery in known]
        whole = [
            ["faults", _cell(len(self.faults))],
            ["started again", _cell(len(known))],
            ["steps", _cell(self.total_steps)],
            ["steps done again", f"{sum(redone):,}, at most {max(redone, default=0):,} for one fault"],
            ["steps lost", _cell(self.steps_lost)],
            *([name, self._beside(key, form)] for name, key, form in (
                ("P@1", "p_at_1", ".4f"), ("P@5", "p_at_5", ".4f"), ("minutes", "wall_minutes", ".1f"),
            )),
            ["processes left", _cell(len(self.processes_left))],
            ["incomplete checkpoints left", _cell(self.incomplete_checkpoints)],
            ["tracebacks told", _cell(self.tracebacks)],
        ]  # fmt: skip
        return "\n\n".join(["# Soak", about, table(heading, kinds), table(["the whole run", ""], whole)]) + "\n"

    def _beside(self, key: str, form: str) -> str:
        """A figure of the disturbed run, beside that of the other."""
        runs = {"disturbed": self.disturbed, "undisturbed": self.undisturbed or {}}
        return ", ".join(f"{run[key]:{form}} {name}" for name, run in runs.items() if run.get(key) is not None) or "-"


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
