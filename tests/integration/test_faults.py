"""A part of the faults of files and of memory (tests/faults), the same each time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[1] / "faults"


@pytest.mark.parametrize(
    ("script", "compiler", "words", "what"),
    [
        ("run.py", os.environ.get("CC", "cc"), ["--every", "100", "train"], "operations"),
        ("memory.py", os.environ.get("CXX", "c++"), ["--every", "60", "train"], "allocations"),
    ],
)
def test_what_fails_once_is_said_in_a_sentence_and_changes_no_result(
    script: str, compiler: str, words: list[str], what: str
) -> None:
    if shutil.which(compiler) is None or "LD_PRELOAD" in os.environ:
        pytest.skip("needs a compiler, and a library of its own to preload")
    ran = subprocess.run([sys.executable, FAULTS / script, *words], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.search(rf"(\d+) {what}, (\d+) faults, 0 went wrong", ran.stdout)
    assert found is not None, ran.stdout
    assert int(found[1]) > 100
    assert int(found[2]) > 5
