"""The report of a soak, from invented faults and records."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bench.cluster.soak import State
from bench.cluster.soak_faults import FAULTS, SURVIVED
from bench.cluster.soak_report import PAUSE, Fault, Recovery, Round, Soak, recoveries
from bench.lib.commands import read_records

KILLED, FULL, ENDED = Fault("killed", 10.0), Fault("full", 30.0), Fault("terminated", 50.0)


def record(kind: str, time: float, step: int) -> dict[str, Any]:
    return {"record": kind, "time": time, "step": step}


# Killed after step 100 and resumed from 80; survived a full disk; terminated at 200 and resumed there.
LOG = [
    *(record("start", 1.0, 0), record("step", 2.0, 1), record("step", 7.5, 80), record("step", 9.5, 100)),
    *(record("start", 14.0, 80), record("step", 14.5, 81), record("step", 49.0, 190)),
    *(record("start", 53.0, 200), record("step", 53.2, 201), record("end", 60.0, 300)),
]


def test_recoveries_are_matched_to_their_faults() -> None:
    killed, full, ended = recoveries([KILLED, FULL, ENDED], LOG)
    assert killed == Recovery("killed", 4.5, repeated=20, repeated_seconds=2.0)
    assert full is None
    assert ended == Recovery("terminated", pytest.approx(3.2), repeated=0, repeated_seconds=0.0)


def test_a_fault_that_the_next_one_overtakes_has_no_recovery() -> None:
    first, second = recoveries([KILLED, Fault("stopped", 12.0)], LOG)
    assert first is None
    assert second is not None
    assert second.seconds == 2.5


def test_a_start_that_came_to_no_step_is_no_recovery() -> None:
    assert recoveries([ENDED], LOG[:-2]) == [None]


def test_a_start_after_the_end_of_a_piece_is_no_recovery() -> None:
    with_mark = Round(on_lab=False, faults=[KILLED, FULL], marks=[Fault(PAUSE, 51.0)], log=LOG)
    killed, full = with_mark.recoveries
    assert killed is not None
    assert full is None
    assert dataclasses.replace(with_mark, marks=[]).recoveries[1] is not None


def soak(**changes: Any) -> Soak:
    first = Round(
        on_lab=False, faults=[KILLED, FULL, ENDED], log=LOG, total_steps=300,
        summary={"exit_code": 0, "steps": 300, "p_at_1": 0.75},
    )  # fmt: skip
    last = Round(on_lab=True, faults=[KILLED], log=LOG[:4])  # which goes on
    return Soak([dataclasses.replace(first, **changes), last], {"p_at_1": 0.755}, 5.0)


def test_report_of_a_soak() -> None:
    found = soak()
    assert not found.failed
    lines = found.markdown("Invented.").splitlines()
    assert "| killed | 2 | 1 | 4.5 | 4.5 | 2.0 | 20 |" in lines
    assert "| full | 1 | 0 | - | - | - | 0 |" in lines
    assert "| runs, and those that have ended | 2, 1 |" in lines
    assert "| P@1 | 0.7500 to 0.7500 with faults, 0.7550 without |" in lines
    assert json.loads(json.dumps(found.as_json()))["by_kind"]["terminated"]["seconds_most"] == pytest.approx(3.2)


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": {"exit_code": 4}},  # did not finish
        {"summary": {"exit_code": 0, "steps": 299, "p_at_1": 0.75}},
        {"summary": {"exit_code": 0, "steps": 300, "p_at_1": 0.74}},
        {"processes_left": ["17"]},
        {"faults": [KILLED, Fault("full", 30.0, settled=False)]},
    ],
)
def test_what_makes_a_soak_fail(changes: dict[str, Any]) -> None:
    assert soak(**changes).failed
    assert soak(**changes).markdown("")


def test_a_piece_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    state = State(7, 4, 30, {"p_at_1": 0.755}, list(soak().rounds), 5.0)
    state.save(tmp_path / "state.json")
    assert State.load(tmp_path / "state.json") == state
    assert state.faults == 4


def test_kinds_of_faults() -> None:
    kinds = set(FAULTS[True]) | set(FAULTS[False])
    assert set(SURVIVED) < kinds
    assert len(FAULTS[True]) == len(FAULTS[False]) + 2


def test_lines_that_a_fault_has_cut_off_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"a": 1}\n{"a": \n7\n{"a": 2}\n{"b')
    assert read_records(tmp_path / "log") == [{"a": 1}, {"a": 2}]
    assert read_records(tmp_path / "none") == []
