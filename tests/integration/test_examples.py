"""The scripts in examples/ run, and find what they planted in their data. (`make demo` runs demo.py.)"""

from __future__ import annotations

import lzma
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
    "torch_text": "gambit rook: chess",
    "torch_recommender": "for a new user with items of kind 0: kinds 0 0 0 0 0",
}
BESIDE_PLAIN_PYTORCH = ("torch_text", "torch_recommender")


def test_every_example_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*FOUND, "demo"}


@pytest.mark.parametrize("name", FOUND)
def test_an_example_finds_what_it_planted(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [name])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert FOUND[name] in capsys.readouterr().out


@pytest.mark.parametrize("name", BESIDE_PLAIN_PYTORCH)
def test_an_example_on_files_with_plain_pytorch(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And without it, both find what there is in the files."""
    rows = [(row % 3, [f"{row % 3}{word}" for word in "abcd"]) for row in range(600)]
    lines = {
        "torch_text": [f"{row}\tl{label}\t{' '.join(words)}\n" for row, (label, words) in enumerate(rows)],
        "torch_recommender": [
            f"{row} {' '.join(str(10 * label + i) for i in range(8))}\n" for row, (label, _) in enumerate(rows)
        ],
    }[name]
    (tmp_path / "train").write_text("".join(lines))
    with lzma.open(tmp_path / "test.xz", "wt") as file:
        file.writelines(
            f"{row} {10 * (row % 3) + 8}\n" if name == "torch_recommender" else lines[row] for row in range(9)
        )
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    for plain in ([], ["--plain"]):
        main([str(tmp_path / "train"), str(tmp_path / "test.xz"), "--epochs", "3", *plain])
        found = capsys.readouterr().out
        assert ("P@1 1.000" in found) if name == "torch_text" else ("of 9 users" in found)
