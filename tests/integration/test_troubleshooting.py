"""The page about error messages knows those that the sources have, and no others."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import pytest

from dslide import errors

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guide/troubleshooting.md").read_text()
COLLECTED = runpy.run_path(str(DOCS / "messages.py"))


def documented() -> list[str]:
    """Messages of the tables that have a column of this name."""
    tables = re.findall(r"^\| message \|.*?\n\n", PAGE, flags=re.DOTALL | re.MULTILINE)
    firsts = (line.split(" | ")[0] for table in tables for line in table.splitlines()[2:])
    return [span for first in firsts for span in re.findall(r"`([^`]+)`", first)]


def in_sources(message: str, sentences: set[str]) -> bool:
    """Whether a text of the sources contains the message; quotes around gaps don't count."""
    return any(message in sentence.replace("`", "") for sentence in sentences)


@pytest.fixture(scope="module")
def sentences() -> set[str]:
    found: set[str] = COLLECTED["sentences"]()
    return found


def test_every_message_of_the_page_is_in_the_sources(sentences):
    assert len(documented()) > 40
    assert [message for message in documented() if not in_sources(message, sentences)] == []


def test_every_kind_of_error_is_collected():
    kinds = {kind for kind in vars(errors).values() if inspect.isclass(kind) and hasattr(kind, "code")}
    kinds -= {errors.PeerFailed}  # has the message of another rank
    assert {kind.__name__ for kind in kinds} | {"LabError", "BadRequest"} <= COLLECTED["KINDS"]
    assert "…: … rows are more than the … of a request" in COLLECTED["messages_of"]("reports and serving")


def test_messages_that_are_gone_are_found(sentences):
    assert not in_sources("…: the disk is full of hats", sentences)


def test_the_page_lists_every_family_of_messages():
    listed = re.findall(r"^```\{messages\} (.*)$", PAGE, flags=re.MULTILINE)
    assert sorted(listed) == sorted(COLLECTED["FAMILIES"])
    every = {text for texts in COLLECTED["messages"]().values() for text in texts}
    assert every == {text for name in listed for text in COLLECTED["messages_of"](name)}
    assert len(every) > 300
    assert "…: line 1 promises … rows, but there are …" in COLLECTED["messages_of"]("data")
