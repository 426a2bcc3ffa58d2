"""The report of a soak (soak.py): recoveries, from the faults and the log of a run, and their cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.lib.commands import Record
from bench.lib.tables import markdown_table


@dataclass(frozen=True)
class Fault:
    """A fault injected into a run, and its time in seconds since 1970."""

    kind: str
    time: float


@dataclass(frozen=True)
class Recovery:
    """How training resumed after a fault."""

    kind: str
    seconds: float  # from the fault to the end of the first step
    repeated: int  # steps that had been done before


def recoveries(faults: Sequence[Fault], log: Sequence[Record]) -> list[Recovery | None]:
    """One for each fault, None if training did not start again before the next fault. The log has a step about once a
    second; repeated steps after the last one before the fault are not counted."""
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
    """A run with faults, and the same one without faults if there is one."""

    faults: Sequence[Fault]
    recoveries: Sequence[Recovery | None]  # of each fault
    total_steps: int  # of the whole run
    with_faults: Mapping[str, Any]  # its summary and wall_minutes; without steps if it did not finish
    reference: Mapping[str, Any] | None  # the same without faults
    processes_left: Sequence[str]
    incomplete_checkpoints: int
    tracebacks: int

    @property
    def steps_lost(self) -> int:
        whole = self.reference["steps"] if self.reference else self.total_steps
        return int(whole - self.with_faults.get("steps", 0))

    @property
    def failed(self) -> bool:
        return bool(self.steps_lost or self.processes_left)

    def by_kind(self) -> dict[str, dict[str, Any]]:
        found = {}
        for kind in sorted({fault.kind for fault in self.faults}):
            of_kind = [recovery for recovery in self.recoveries if recovery and recovery.kind == kind]
            seconds = [recovery.seconds for recovery in of_kind]
            repeated = [recovery.repeated for recovery in of_kind]
            found[kind] = {
                "faults": sum(fault.kind == kind for fault in self.faults),
                "recoveries": len(of_kind),
                "seconds_median": statistics.median(seconds) if seconds else None,
                "seconds_most": max(seconds, default=None),
                "steps_repeated": sum(repeated),
                "steps_repeated_most": max(repeated, default=None),
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
            "with_faults": dict(self.with_faults),
            "reference": self.reference and dict(self.reference),
        }

    def markdown(self, about: str) -> str:
        kinds = [[kind, *(_cell(value) for value in found.values())] for kind, found in self.by_kind().items()]
        heading = ["fault", "times", "recoveries", "seconds to a step: median", "most"]
        heading += ["steps repeated", "most for one fault"]
        known = [recovery for recovery in self.recoveries if recovery]
        repeated = [recovery.repeated for recovery in known]
        whole = [
            ["faults", _cell(len(self.faults))],
            ["recoveries", _cell(len(known))],
            ["steps", _cell(self.total_steps)],
            ["steps repeated", f"{sum(repeated):,}, at most {max(repeated, default=0):,} for one fault"],
            ["steps lost", _cell(self.steps_lost)],
            *([name, self._beside(key, form)] for name, key, form in (
                ("P@1", "p_at_1", ".4f"), ("P@5", "p_at_5", ".4f"), ("minutes", "wall_minutes", ".1f"),
            )),
            ["processes left", _cell(len(self.processes_left))],
            ["incomplete checkpoints left", _cell(self.incomplete_checkpoints)],
            ["tracebacks", _cell(self.tracebacks)],
        ]  # fmt: skip
        tables = [markdown_table(heading, kinds), markdown_table(["the whole run", ""], whole)]
        return "\n\n".join(["# Soak", about, *tables]) + "\n"

    def _beside(self, key: str, form: str) -> str:
        """A value of the run with faults, beside that of the reference."""
        runs = {"with faults": self.with_faults, "without": self.reference or {}}
        return ", ".join(f"{run[key]:{form}} {name}" for name, run in runs.items() if run.get(key) is not None) or "-"


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
