"""The scripts in examples/ run, and find what they planted in their data. (`make demo` runs demo.py.)"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FOUND = {  # what each has to print
    "subject_texts": "coral and plankton of the ocean: marine biology",
    "recommender": "for a new user who saw two space films: space-",
    "scipy_matrices": "a poor film is bad",
    "json_lines": '"name": "Rust"',
    "growing_stream": "grown to 4 labels: ['film']",
}


def test_every_example_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*FOUND, "demo"}


@pytest.mark.parametrize("name", FOUND)
def test_an_example_finds_what_it_planted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert FOUND[name] in capsys.readouterr().out
