"""Test data of a run: columns of its file, rows held out, evaluation during the run."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.mpi_run import run_mpi

from dslide.checkpoint.saved_model import load_model
from dslide.cli import main
from dslide.data import load, write_dataset

SMALL = ["--hidden", "16", "--batch-size", "32", "--threads", "1"]


def run(capfd: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """Runs a command; gives all it says."""
    capfd.readouterr()
    assert main([str(a) for a in arguments]) == code
    return "".join(capfd.readouterr())


def refused(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    return run(capfd, *arguments, code=2).removeprefix("dslide: error: ").rstrip("\n")


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def records(folder: Path, kind: str = "test", log: str = "log.jsonl") -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / log).read_text().splitlines())
    return [line for line in lines if line["record"] == kind]


def same_network(a: Path, b: Path) -> bool:
    one, other = (load_model(folder, optimizer=True) for folder in (a, b))
    return all(np.array_equal(one.state[name], other.state[name]) for name in one.state)


@pytest.fixture(scope="module")
def s(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic train.txt and test.txt."""
    folder = tmp_path_factory.mktemp("testing") / "s"
    size = ["--rows", "600", "--test-rows", "80", "--features", "300", "--labels", "20"]
    assert main(["synth", str(folder), *size]) == 0
    return folder


# ---- columns ---------------------------------------------------------------------------------------------------------


def test_a_model_remembers_the_columns_of_its_text(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ["x1\tBook/en\tships\tthe boat sails the sea", "x2\tBook/en\tplanes\tthe jet flies the sky"] * 12
    data, model = tmp_path / "train.tsv", tmp_path / "run"
    data.write_text("\n".join(rows) + "\n")
    (tmp_path / "recipe.toml").write_text("label_column = 3\ntext_column = 4\nepochs = 30\nlearning_rate = 0.02\n")
    run(capfd, "train", data, "--test", data, "--out", model, "--config", tmp_path / "recipe.toml", *SMALL)
    assert summary(model)["p_at_1"] == 1
    assert "P@k   1.0000" in run(capfd, "evaluate", model, data, "--k", "1")
    assert run(capfd, "predict", model, data, "--k", "1") == "ships\nplanes\n" * 12
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"boat sea\nthe jet\n")))
    assert run(capfd, "predict", model, "-", "--k", "1") == "ships\nplanes\n"
    (tmp_path / "plain.tsv").write_text("ships\tboat sea\n")
    message = refused(capfd, "evaluate", model, tmp_path / "plain.tsv")
    assert message.endswith("has 2 columns, and none with number 3")
    columns = ["--label-column", "1", "--text-column", "2"]
    assert "P@k   1.0000" in run(capfd, "evaluate", model, tmp_path / "plain.tsv", "--k", "1", *columns)
    assert "24 rows" in run(capfd, "train", data, "--resume", model, "--epochs", "31")
    assert "fits into" in run(capfd, "plan", data, "--label-column", "3", "--text-column", "4", "--threads", "1")


# ---- rows held out ---------------------------------------------------------------------------------------------------


def test_held_out_rows_are_tested_on_and_not_trained_on(
    capfd: pytest.CaptureFixture[str], s: Path, tmp_path: Path
) -> None:
    model = tmp_path / "run"
    options = ["--hold-out", "0.25", "--seed", "3", "--epochs", "3", *SMALL]
    text = run(capfd, "train", s / "train.txt", "--out", model, *options)
    assert "train.txt: 450 rows" in text
    assert "held out of it: 150 rows" in text
    assert (summary(model)["rows"], summary(model)["test_rows"]) == (450, 150)
    train, held = load(s / "train.txt").split(0.25, 3)
    saved = load_model(model, optimizer=True)
    assert saved.progress["data"] == train.checksum
    assert saved.label_counts.tolist() == np.bincount(train.y.indices, minlength=20).tolist()
    write_dataset(held, tmp_path / "held")
    text = run(capfd, "evaluate", model, tmp_path / "held", "--k", "1")
    assert f"P@k   {summary(model)['p_at_1']:.4f}" in text


def test_resuming_holds_out_the_same_rows(capfd: pytest.CaptureFixture[str], s: Path, tmp_path: Path) -> None:
    data, whole, parts = s / "train.txt", tmp_path / "whole", tmp_path / "parts"
    train = ["train", data, "--schedule", "constant", "--hold-out", "0.25", *SMALL]
    run(capfd, *train, "--epochs", "2", "--out", whole)
    run(capfd, *train, "--epochs", "1", "--out", parts)
    more = ["train", data, "--resume", parts, "--epochs", "2", "--threads", "1"]
    assert refused(capfd, *more, "--hold-out", "0.5") == (
        "hold_out: the run was begun with 0.25, and on resuming that can't change"
    )
    assert refused(capfd, *more, "--test", s / "test.txt") == (
        "test: the run was begun with hold_out 0.25, and is tested on those rows"
    )
    run(capfd, *more)
    assert same_network(whole, parts)
    assert summary(parts)["p_at_1"] == summary(whole)["p_at_1"]
    run(capfd, "train", data, "--epochs", "1", "--out", tmp_path / "all", *SMALL)
    assert refused(capfd, "train", data, "--resume", tmp_path / "all", "--epochs", "2", "--hold-out", "0.25") == (
        "hold_out: the run was begun with none, and on resuming that can't change"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hold-out", "0"], "hold_out: expected a share above 0 and below 1, not 0"),
        (["--hold-out", "1"], "hold_out: expected a share above 0 and below 1, not 1"),
        (["--hold-out", "nan"], "hold_out: expected a share above 0 and below 1, not nan"),
        (["--hold-out", "0.1", "--test", "x"], "hold_out: there is test data already, given as test"),
        (["--test", "x", "--test-every", "-1"], "test_every: expected at least 0, not -1"),
        (["--test", "x", "--test-every", "1", "--test-rows", "-5"], "test_rows: expected at least 0, not -5"),
        (["--test", "x", "--test-rows", "5"], "test_rows: is for evaluation during the run, but test_every is not "
         "given"),
        (["--test-every", "1"], "test_every: there is no test data; give test or hold_out"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(
    capfd: pytest.CaptureFixture[str], s: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    assert refused(capfd, "train", s / "train.txt", "--out", tmp_path / "run", *options) == message
    assert not (tmp_path / "run").exists()


def test_too_few_rows_to_hold_out(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("0 0:1\n1 1:1\n")
    message = refused(capfd, "train", tmp_path / "few.txt", "--hold-out", "0.1", "--out", tmp_path / "run")
    assert message == f"{tmp_path / 'few.txt'}: a share of 0.1 leaves one part of 2 rows without any"


# ---- during the run --------------------------------------------------------------------------------------------------


def test_evaluation_during_the_run_changes_nothing_else(
    capfd: pytest.CaptureFixture[str], s: Path, tmp_path: Path
) -> None:
    train = ["train", s / "train.txt", "--test", s / "test.txt", "--epochs", "5", *SMALL]
    run(capfd, *train, "--out", tmp_path / "plain")
    text = run(capfd, *train, "--out", tmp_path / "tested", "--test-every", "2", "--profile")
    assert same_network(tmp_path / "plain", tmp_path / "tested")
    found = records(tmp_path / "tested")
    assert [record["epoch"] for record in found] == [2, 4, 5]
    assert [record["epoch"] for record in records(tmp_path / "plain")] == [5]
    assert found[0]["p_at_1"] <= found[1]["p_at_1"] + 0.05
    for name in ("p_at_1", "r_at_3", "ndcg_at_5", "psp_at_5"):
        assert found[-1][name] == summary(tmp_path / "tested")[name] == summary(tmp_path / "plain")[name]
    assert all(record["rows"] == 80 for record in found)
    seconds = [record["seconds"] for record in found]
    assert 0 < seconds[0] < seconds[1] < seconds[2] == summary(tmp_path / "tested")["seconds"]
    for record in found[:2]:
        scores = ", ".join(f"P@{k} {record[f'p_at_{k}']:.4f}" for k in (1, 3, 5))
        assert f"epoch {record['epoch']}/5: {scores} on 80 test rows\n" in text


def test_each_measurement_is_that_of_the_network_at_that_time(
    capfd: pytest.CaptureFixture[str], s: Path, tmp_path: Path
) -> None:
    train = ["train", s / "train.txt", "--test", s / "test.txt", "--schedule", "constant", "--quiet", *SMALL]
    run(capfd, *train, "--epochs", "3", "--out", tmp_path / "long", "--test-every", "1")
    for epoch in (1, 2):
        run(capfd, *train, "--epochs", epoch, "--out", tmp_path / f"{epoch}")
        assert records(tmp_path / "long")[epoch - 1]["p_at_5"] == summary(tmp_path / f"{epoch}")["p_at_5"]


def test_some_rows_are_enough_and_are_always_the_same(
    capfd: pytest.CaptureFixture[str], s: Path, tmp_path: Path
) -> None:
    train = ["train", s / "train.txt", "--test", s / "test.txt", "--epochs", "2", "--quiet", *SMALL]
    found = {}
    for name, rows in (("a", 30), ("b", 30), ("many", 1000)):
        run(capfd, *train, "--out", tmp_path / name, "--test-every", "1", "--test-rows", rows)
        found[name] = records(tmp_path / name)
    assert [record["rows"] for record in found["a"]] == [30, 80]  # at the end all rows count
    assert [record["rows"] for record in found["many"]] == [80, 80]
    assert found["a"][0]["p_at_5"] == found["b"][0]["p_at_5"]


def test_ranks_measure_together(tmp_path: Path, s: Path) -> None:
    options = ["--hold-out", "0.2", "--test-every", "1", "--test-rows", "60", "--epochs", "2", "--wire", "float32"]
    program = "import sys; from dslide.cli import main; sys.exit(main(sys.argv[1:]))"
    for ranks in (1, 2):
        done = run_mpi(ranks, program, "train", s / "train.txt", *options, *SMALL, "--out", tmp_path / f"{ranks}")
        assert done.code == 0, done.stderr
    alone, first, second = (
        [(record["epoch"], record["rows"], record["p_at_5"]) for record in records(tmp_path / folder, log=log)]
        for folder, log in (("1", "log.jsonl"), ("2", "log.jsonl"), ("2", "log-1.jsonl"))
    )
    assert [record[:2] for record in alone] == [(1, 60), (2, 120)]
    assert first == second
    for a, b in zip(alone, first, strict=True):
        assert a[:2] == b[:2]
        assert a[2] == pytest.approx(b[2], abs=0.02)  # the same training, to rounding
