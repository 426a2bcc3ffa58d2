"""System calls of the launcher fail, one after the other: the job goes on, or ends with an error, and nothing is
left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import support.failing_calls as failing_calls
from launch.test_launcher import LIMIT, PROGRAM, folder, processes_of  # noqa: F401

pytestmark = pytest.mark.waiting


STEP = 4  # docs/results/security.md tells of a run with 1


def faults(folder: Path, ranks: int) -> list[dict[str, Any]]:  # noqa: F811
    """The ends of jobs of which each had another failure."""
    words = [sys.executable, failing_calls.__file__, str(STEP), str(ranks), *PROGRAM, "alone", str(folder)]
    ended = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=4 * LIMIT)
    assert ended.returncode == 0
    *failed, last = map(json.loads, ended.stdout.splitlines())
    assert last["call"] is None  # all calls of a job had their turn
    assert last["code"] == 0
    for fault in failed:
        assert fault["call"] is not None
        assert fault["files"] == last["files"], fault
        assert fault["seconds"] < LIMIT / 2, fault
    assert not processes_of(folder)
    return failed


def test_a_system_call_of_the_launcher_fails(folder: Path) -> None:  # noqa: F811
    failed = faults(folder, 1)
    assert len({fault["call"] for fault in failed}) > 5
    for fault in failed:
        assert fault["code"] in (0, 4) or fault["error"] in ("CommError", "BrokenPipeError", "OSError"), fault


def test_a_system_call_of_the_supervisor_fails(folder: Path) -> None:  # noqa: F811
    for fault in faults(folder, 0):
        assert fault["code"] == 0 or fault["call"] == "write", fault  # of output, where it can't be written
