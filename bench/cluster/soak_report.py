"""The report of a soak (soak.py): recoveries, from the faults and the logs of runs, and their cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.lib.commands import Record
from bench.lib.tables import markdown_table

PAUSE = "end of a piece"  # a mark between faults
TOLERANCE = 0.01  # of P@1: ranks that were restarted on fewer hosts round sums in another order


@dataclass
class Fault:
    """A fault injected into a run, its time in seconds since 1970, and whether training went on."""

    kind: str
    time: float
    settled: bool = True


@dataclass(frozen=True)
class Recovery:
    """How training resumed after a fault."""

    kind: str
    seconds: float  # from the fault to the end of the first step
    repeated: int  # steps that had been done before
    repeated_seconds: float  # of training that was done before


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
        again = after[at]["step"]
        seconds, lost = stepped[0]["time"] - fault.time, _trained_beyond(again, [*before, *after[:at]])
        found.append(Recovery(fault.kind, seconds, max(0, done - again), lost))
    return found


def _trained_beyond(step: int, log: Sequence[Record]) -> float:
    """Seconds of training at the end of a log that were for steps after this one; starts are no training."""
    seconds, later = 0.0, None
    for record in reversed(log):
        if later is not None and record["record"] != "start":
            seconds += later - record["time"]
        if record["step"] <= step:
            break
        later = None if record["record"] == "start" else record["time"]
    return seconds


@dataclass
class Round:
    """One run with faults, as far as it is."""

    on_lab: bool
    faults: list[Fault] = field(default_factory=list)
    marks: list[Fault] = field(default_factory=list)  # where pieces ended
    log: list[Record] = field(default_factory=list)
    total_steps: int = 0  # of the whole run
    summary: dict[str, Any] = field(default_factory=dict)  # empty: the run goes on; without steps: it failed
    processes_left: list[str] = field(default_factory=list)
    incomplete_checkpoints: int = 0
    tracebacks: int = 0

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Round:
        return cls(**saved | {name: [Fault(**each) for each in saved[name]] for name in ("faults", "marks")})

    @property
    def recoveries(self) -> list[Recovery | None]:
        """Of each fault."""
        events = sorted([*self.faults, *self.marks], key=lambda event: event.time)
        found = zip(events, recoveries(events, self.log), strict=True)
        return [recovery for event, recovery in found if event.kind != PAUSE]

    @property
    def steps_lost(self) -> int:
        return int(self.total_steps - self.summary.get("steps", 0)) if self.summary else 0


@dataclass(frozen=True)
class Soak:
    """Runs with faults, and the same one without."""

    rounds: Sequence[Round]
    reference: Mapping[str, Any]  # summary of the run without faults
    minutes: float  # of all

    @property
    def faults(self) -> list[Fault]:
        return [fault for found in self.rounds for fault in found.faults]

    @property
    def ended(self) -> list[Round]:
        return [found for found in self.rounds if found.summary]

    @property
    def hangs(self) -> int:
        return sum(not fault.settled for fault in self.faults)

    @property
    def steps_lost(self) -> int:
        return sum(found.steps_lost for found in self.rounds)

    @property
    def less_accurate(self) -> int:
        """Runs with a P@1 below that without faults."""
        least = self.reference.get("p_at_1", 0.0) - TOLERANCE
        return sum(found.summary.get("p_at_1", 0.0) < least for found in self.ended)

    @property
    def failed(self) -> bool:
        left = any(found.processes_left for found in self.rounds)
        return bool(self.steps_lost or self.hangs or self.less_accurate or left)

    def by_kind(self) -> dict[str, dict[str, Any]]:
        found = {}
        known = [recovery for each in self.rounds for recovery in each.recoveries if recovery]
        for kind in sorted({fault.kind for fault in self.faults}):
            of_kind = [recovery for recovery in known if recovery.kind == kind]
            seconds = [recovery.seconds for recovery in of_kind]
            found[kind] = {
                "faults": sum(fault.kind == kind for fault in self.faults),
                "restarts": len(of_kind),
                "seconds_median": statistics.median(seconds) if seconds else None,
                "seconds_most": max(seconds, default=None),
                "repeated_seconds_most": max((recovery.repeated_seconds for recovery in of_kind), default=None),
                "steps_repeated": sum(recovery.repeated for recovery in of_kind),
            }
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "by_kind": self.by_kind(),
            "faults": len(self.faults),
            "hangs": self.hangs,
            "steps_lost": self.steps_lost,
            "less_accurate": self.less_accurate,
            "minutes": self.minutes,
            "summaries": [found.summary for found in self.ended],
            "reference": dict(self.reference),
        }

    def markdown(self, about: str) -> str:
        kinds = [[kind, *(_cell(value) for value in found.values())] for kind, found in self.by_kind().items()]
        heading = ["fault", "times", "restarts", "seconds to a step: median", "most"]
        heading += ["seconds of training repeated, at most", "steps repeated"]
        p_at_1 = sorted(found.summary["p_at_1"] for found in self.ended if "p_at_1" in found.summary)
        between = f"{p_at_1[0]:.4f} to {p_at_1[-1]:.4f} with faults, " if p_at_1 else ""
        without = f"{self.reference['p_at_1']:.4f} without" if "p_at_1" in self.reference else "-"
        whole = [
            ["faults", _cell(len(self.faults))],
            ["minutes", _cell(self.minutes)],
            ["runs, and those that have ended", f"{len(self.rounds)}, {len(self.ended)}"],
            ["steps of these", _cell(sum(found.total_steps for found in self.ended))],
            ["steps lost", _cell(self.steps_lost)],
            ["faults after which training did not go on", _cell(self.hangs)],
            ["P@1", between + without],
            ["processes left", _cell(sum(len(found.processes_left) for found in self.rounds))],
            ["incomplete checkpoints left", _cell(sum(found.incomplete_checkpoints for found in self.ended))],
            ["tracebacks", _cell(sum(found.tracebacks for found in self.rounds))],
        ]
        tables = [markdown_table(heading, kinds), markdown_table(["all runs", ""], whole)]
        return "\n\n".join(["# Soak", about, *tables]) + "\n"


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
