"""Ranks with unequal shares of the network, through the command line, on real MPI ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from numpy.testing import assert_allclose
from support.mpi_run import mpiexec

from dslide.checkpoint.saved_model import load_model
from dslide.cli import main

OPTIONS = [
    "--hidden", "18", "--batch-size", "64", "--output", "random", "--random-negatives", "40", "--wire", "float32",
    "--epochs", "2", "--threads", "1", "--schedule", "constant", "--validation", "0", "--linear-negatives", "0",
]  # fmt: skip


def dslide(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dslide.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def works(*arguments: object) -> str:
    done = dslide(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a run of one rank on it."""
    mpiexec()
    folder = tmp_path_factory.mktemp("shares")
    assert main(["synth", str(folder / "s"), "--rows", "500", "--features", "400", "--labels", "301"]) == 0
    assert main(["train", str(folder / "s/train.txt"), "--out", str(folder / "one"), *OPTIONS, "--quiet"]) == 0
    return folder


def same_network(run: Path, one: Path) -> None:
    expected, found = (load_model(folder, optimizer=True).state for folder in (one, run))
    for name in expected:
        assert_allclose(found[name], expected[name], atol=2e-3, err_msg=name)


def test_ranks_with_any_shares_train_the_network_of_one_and_resume_each_others_runs(made: Path) -> None:
    """The first epoch is done by ranks with shares of 3 and 1, the second by others."""
    run, data = made / "unequal", made / "s/train.txt"
    said = works("train", data, "--out", run, *OPTIONS, "--epochs", 1, "--ranks", 2, "--shares", "3,1")
    assert "shares of the ranks: 3, 1" in said
    assert json.loads((run / "summary.json").read_text())["shares"] == [3, 1]
    works("train", data, "--resume", run, "--epochs", 2, "--ranks", 3, "--shares", "1,4,2")
    same_network(run, made / "one")
    rows = made / "s/train.txt"
    assert works("predict", run, rows, "--ranks", 2) == works("predict", run, rows)
    assert json.loads((run / "summary.json").read_text())["shares"] == [1, 4, 2]


def test_measured_shares_train_the_same_network(made: Path) -> None:
    run = made / "measured"
    said = works("train", made / "s/train.txt", "--out", run, *OPTIONS, "--ranks", 2, "--shares", "-1")
    shares = json.loads((run / "summary.json").read_text())["shares"]
    assert len(shares) == 2
    assert ("shares of the ranks: " + ", ".join(map(str, shares))) in said
    same_network(run, made / "one")


@pytest.mark.parametrize(("ranks", "shares"), [(2, "2,1,1"), (1, "2,1")])
def test_shares_for_other_ranks_are_refused(made: Path, tmp_path: Path, ranks: int, shares: str) -> None:
    done = dslide("train", made / "s/train.txt", "--out", tmp_path / "r", "--ranks", ranks, "--shares", shares)
    assert done.returncode == 2
    given, s = len(shares.split(",")), "s" * (ranks > 1)
    assert done.stderr == f"dslide: error: shares: {given} are given for {ranks} rank{s}; give one for each\n"
