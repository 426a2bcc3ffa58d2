"""The report of a soak, from invented faults and records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cluster.soak_report import Fault, Recovery, Soak, recoveries
from bench.lib.commands import read_records

KILLED, FULL, ENDED = Fault("killed", 10.0), Fault("full", 30.0), Fault("terminated", 50.0)


def record(kind: str, time: float, step: int) -> dict[str, Any]:
    return {"record": kind, "time": time, "step": step}


# Killed after step 100 and resumed from 80; survived a full disk; terminated at 200 and resumed there.
LOG = [
    *(record("start", 1.0, 0), record("step", 2.0, 1), record("step", 9.5, 100)),
    *(record("start", 14.0, 80), record("step", 14.5, 81), record("step", 49.0, 190)),
    *(record("start", 53.0, 200), record("step", 53.2, 201), record("end", 60.0, 300)),
]


def test_recoveries_are_matched_to_their_faults() -> None:
    killed, full, ended = recoveries([KILLED, FULL, ENDED], LOG)
    assert killed == Recovery("killed", 4.5, repeated=20)
    assert full is None
    assert ended == Recovery("terminated", pytest.approx(3.2), repeated=0)


def test_a_fault_that_the_next_one_overtakes_has_no_recovery() -> None:
    first, second = recoveries([KILLED, Fault("stopped", 12.0)], LOG)
    assert first is None
    assert second is not None
    assert second.seconds == 2.5


def test_a_start_that_came_to_no_step_is_no_recovery() -> None:
    assert recoveries([ENDED], LOG[:-2]) == [None]


def soak(**changes: Any) -> Soak:
    given: dict[str, Any] = {
        "faults": [KILLED, FULL, ENDED, KILLED],
        "recoveries": [Recovery("killed", 4.5, 25), None, Recovery("terminated", 3.0, 0), Recovery("killed", 6.5, 5)],
        "total_steps": 300,
        "with_faults": {"steps": 300, "p_at_1": 0.75, "wall_minutes": 2.0},
        "reference": {"steps": 300, "p_at_1": 0.5, "wall_minutes": 1.0},
        "processes_left": [],
        "incomplete_checkpoints": 0,
        "tracebacks": 0,
    }
    return Soak(**given | changes)


def test_report_of_a_soak() -> None:
    found = soak()
    assert not found.failed
    lines = found.markdown("Invented.").splitlines()
    assert "| killed | 2 | 2 | 5.5 | 6.5 | 30 | 25 |" in lines
    assert "| full | 1 | 0 | - | - | 0 | - |" in lines
    assert "| steps repeated | 30, at most 25 for one fault |" in lines
    assert "| P@1 | 0.7500 with faults, 0.5000 without |" in lines
    assert json.loads(json.dumps(found.as_json()))["by_kind"]["terminated"]["seconds_most"] == 3.0


@pytest.mark.parametrize(
    "changes",
    [
        {"with_faults": {"wall_minutes": 2.0}},  # did not finish
        {"with_faults": {"steps": 299}},
        {"with_faults": {"steps": 299}, "reference": None},
        {"processes_left": ["17"]},
    ],
)
def test_what_makes_a_soak_fail(changes: dict[str, Any]) -> None:
    assert soak(**changes).failed
    assert soak(**changes).markdown("")


def test_lines_that_a_fault_has_cut_off_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"a": 1}\n{"a": \n7\n{"a": 2}\n{"b')
    assert read_records(tmp_path / "log") == [{"a": 1}, {"a": 2}]
    assert read_records(tmp_path / "none") == []
