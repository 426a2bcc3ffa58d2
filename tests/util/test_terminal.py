"""What is printed controls no terminal, and commands are quoted for shells."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslide.util.terminal import command, json_line, printable

ESCAPE = "\x1b]0;title\x07\x9b2J\u202eabc\tx\r\n"


def test_control_characters_are_escaped() -> None:
    assert printable(ESCAPE) == "\\x1b]0;title\\x07\\x9b2J\\u202eabc\\tx\\r\\n"
    assert printable("\ud800") == "\\ud800"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "\u00e9t\u00e9",
        "\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\U0001f469\u200d\U0001f692",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    """Also the joiners of scripts and emoji, which str.isprintable takes for control characters."""
    assert printable(text) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_stays_exact(text: str) -> None:
    line = json_line({text: [text]})
    assert json.loads(line) == {text: [text]}
    assert printable(line) == line


@pytest.mark.parametrize(
    "name",
    [
        "plain.txt",
        "two words",
        "it's",
        "$(touch planted)",
        "a;b",
        "new\nline",
        "\x1b[2J",
        "q'\\\x07\n",
        "caf\u00e9\x01",
        "*",
    ],
)
def test_a_shell_takes_a_command_word_by_word(name: str, tmp_path: Path) -> None:
    line = command("predict", name, "x")
    assert line.startswith("dslide predict ")
    assert printable(line) == line
    script = f"dslide() {{ printf '%s\\0' \"$@\"; }}; {line}"
    out = subprocess.run(["bash", "-c", script], capture_output=True, check=True, cwd=tmp_path).stdout
    assert out == b"predict\0" + os.fsencode(name) + b"\0x\0"
    assert list(tmp_path.iterdir()) == []
