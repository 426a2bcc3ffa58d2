"""Names from files, printed by commands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from dslide.cli import main

HOSTILE = "\x1b]0;owned\x07"
NAMES = [f"cat{HOSTILE}", "dog\x9b2J", "cow\u202etac"]
TRAIN = ["--hidden", "4", "--epochs", "1", "--threads", "1", "--validation", "0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose labels and words carry terminal escapes, in a folder with a name for a shell to trip over."""
    folder = tmp_path_factory.mktemp("it's; $(touch planted)")
    data = folder / "data set.jsonl"
    rows = [{"text": f"word{i} \x1b[2Jword{HOSTILE}", "labels": [NAMES[i % 3]]} for i in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["train", str(data), "--out", str(folder / "a run"), *TRAIN]) == 0
    return folder / "a run"


def controls(text: str) -> list[str]:
    return re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text.replace("\t", ""))


@pytest.mark.parametrize(
    "words",
    [["predict", "RUN", "DATA"], ["predict", "RUN", "DATA", "--why", "2"], ["predict", "RUN", "DATA", "--json"],
     ["neighbours", "RUN", NAMES[0], "--labels"], ["neighbours", "RUN", "missing\x1b[2J"], ["evaluate", "RUN", "DATA"]],
)  # fmt: skip
def test_names_control_no_terminal(run: Path, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    places = {"RUN": str(run), "DATA": str(run.parent / "data set.jsonl")}
    main([places.get(word, word) for word in words])
    out, err = capfd.readouterr()
    assert controls(out + err) == []
    assert out + err
    if "--json" in words:
        found = [label["name"] for line in out.splitlines() for label in json.loads(line)["labels"]]
        assert set(found) == set(NAMES)
    elif words[0] == "predict":
        assert "cat\\x1b]0;owned\\x07" in out


def test_the_next_command_is_quoted(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, other = run.parent / "data set.jsonl", run.parent / "b run"
    assert main(["train", str(data), "--out", str(other), *TRAIN]) == 0
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("next: ")]
    assert shlex.split(line) == ["next:", "dslide", "predict", str(other), str(data)]
