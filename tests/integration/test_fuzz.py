"""A bounded run of fuzz.py, the same each time. `make fuzz` is the long one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fuzz.run import Wrong, check_sentence, check_targets
from fuzz.targets import TARGETS

EXAMPLES = 10 if os.environ.get("DSLIDE_TEST_PROFILE") == "quick" else 60


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_input_opens_or_gives_one_sentence(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where commands run in the end
    findings = check_targets([target], 1, lambda: iter(range(EXAMPLES)), kept=tmp_path / "kept")
    assert [(f.number, f.reason) for f in findings] == []


@pytest.mark.parametrize(
    "message", ["", "a\nb", "x" * 2000, "at <dslide.X object at 0x7f>", "KeyError('x')", "\x1b[2J"]
)
def test_what_is_no_sentence_is_found(message: str) -> None:
    with pytest.raises(Wrong):
        check_sentence(message)
