"""dslide index: what approximate prediction looks labels up in is made anew, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dslide.checkpoint.saved_model import load_model
from dslide.cli import main
from dslide.data import synthesize
from dslide.training.folders import lock_folder

CELLS = ("--output", "cells", "--prior-labels", "0")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    synthesize(tmp_path / "data", 400, 100, 300, 60, 0)
    words = ["train", tmp_path / "data/train.txt", "--out", tmp_path / "run", "--hidden", 8, "--epochs", 1, *CELLS]
    assert main([*map(str, words)]) == 0
    return tmp_path / "run"


def test_an_index_of_other_rows_takes_the_place_of_the_saved_one(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = {name: np.array(array) for name, array in load_model(run, optimizer=True).state.items()}
    assert main(["index", str(run), "--rows", str(run.parent / "data/test.txt")]) == 0
    assert "cells in" in capfd.readouterr().out
    after = load_model(run, optimizer=True, verify=True)
    changed = {name for name, array in after.state.items() if not np.array_equal(array, before[name])}
    assert changed == {"index.centres", "index.labels"}
    assert set(before) == set(after.state)
    assert main(["index", str(run)]) == 0  # of the rows of training: as it was
    again = load_model(run).state
    for name in changed:
        np.testing.assert_array_equal(again[name], before[name])


def test_what_cannot_be_indexed_is_said(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train", run.parent / "data/train.txt", "--out", run.parent / "few", "--hidden", 8, "--epochs", 1]
    assert main([*map(str, words)]) == 0
    assert main(["index", str(run.parent / "few")]) == 2
    assert "needs no saved index: up to 8,192 labels are all scored" in capfd.readouterr().err
    lock = lock_folder(run, None)
    try:
        assert main(["index", str(run)]) == 2
    finally:
        lock.release()
    assert "trains this run" in capfd.readouterr().err
