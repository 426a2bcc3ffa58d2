"""The command line at work: train, stop, resume, evaluate, predict, convert, plan, doctor."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dslide.checkpoint.saved_model import load_model
from dslide.cli import main

COMMAND = [sys.executable, "-m", "dslide.cli"]
SMALL = ["--hidden", "16", "--batch-size", "32", "--threads", "1", "--quiet"]
SUMMARY = {
    *("samples_per_second", "seconds", "epochs", "parameters", "peak_rss_bytes", "planned_bytes"),
    *("active_neurons_mean", "p_at_1", "p_at_3", "p_at_5", "ndcg_at_5", "psp_at_5"),
    *("ranks", "threads", "isa", "seed", "version", "config"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with label names, and a run trained and tested on it."""
    folder = tmp_path_factory.mktemp("runs")
    s = folder / "s"
    size = ["--rows", "600", "--test-rows", "50", "--features", "300", "--labels", "20"]
    assert main(["synth", str(s), *size]) == 0
    data = [str(s / "train.txt"), "--test", str(s / "test.txt"), "--label-names", str(s / "labels.txt")]
    assert main(["train", *data, "--out", str(folder / "run"), "--epochs", "3", *SMALL]) == 0
    return folder


def output(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Runs a command that must work; gives what it prints."""
    capfd.readouterr()
    code = main([str(a) for a in arguments])
    out, err = capfd.readouterr()
    assert code == 0, err
    return out


def summary(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return content


def test_a_run_folder_holds_model_log_and_summary(made: Path) -> None:
    assert {p.name for p in (made / "run").iterdir()} == {"checkpoints", "log.jsonl", "summary.json"}
    values = summary(made / "run")
    assert set(values) >= SUMMARY
    assert (values["epochs"], values["ranks"], values["threads"], values["config"]["hidden"]) == (
        3,
        1,
        1,
        [16],
    )
    assert values["p_at_1"] > 0.2  # 20 labels: far above chance
    assert 0 < values["psp_at_5"] <= 1
    assert values["peak_rss_bytes"] > 0
    assert values["planned_bytes"] > 0
    records = [json.loads(line)["record"] for line in (made / "run/log.jsonl").read_text().splitlines()]
    assert (records[0], records[-2:], records.count("epoch")) == ("start", ["checkpoint", "test"], 3)


def test_training_says_what_it_read_and_what_to_do_next(
    capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = output(capfd, "train", made / "s/train.txt", "--epochs", "1", "--hidden", "8")
    assert "600 rows, 300 features, 20 labels" in text
    assert "run folder: runs/train-1" in text
    assert f"next: dslide predict runs/train-1 {made / 's/train.txt'}" in text
    values = summary(tmp_path / "runs/train-1")
    assert values["p_at_1"] is None  # nothing to test on
    assert "runs/train-2" in output(capfd, "train", made / "s/train.txt", "--epochs", "1", "--hidden", "8")


def test_options_come_from_toml_and_the_command_line_wins(made: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        'hidden = [8, 4]\nepochs = 9\nlearning-rate = 0.125\ncorrection = false\nloss = "sigmoid"\n'
        f'quiet = true\nout = "{tmp_path / "run"}"\n'
    )
    assert main(["train", str(made / "s/train.txt"), "--config", str(tmp_path / "c.toml"), "--epochs", "1"]) == 0
    config = summary(tmp_path / "run")["config"]
    assert (config["hidden"], config["epochs"], config["learning_rate"]) == ([8, 4], 1, 0.125)
    assert (config["correction"], config["loss"]) == (False, "sigmoid")


@pytest.mark.parametrize("stored", ["float32", "bf16"])
def test_resuming_gives_the_network_of_an_unbroken_run(made: Path, tmp_path: Path, stored: str) -> None:
    storage = ["--weights", stored, "--moments", stored]
    train = ["train", str(made / "s/train.txt"), "--schedule", "constant", *storage, *SMALL]
    assert main([*train, "--epochs", "2", "--out", str(tmp_path / "whole")]) == 0
    assert main([*train, "--epochs", "1", "--out", str(tmp_path / "parts")]) == 0
    data = str(made / "s/train.txt")
    assert main(["train", data, "--resume", str(tmp_path / "parts"), "--epochs", "2", "--quiet"]) == 0
    whole = load_model(tmp_path / "whole", optimizer=True)
    parts = load_model(tmp_path / "parts", optimizer=True)
    assert parts.progress == whole.progress
    assert set(parts.state) == set(whole.state)
    assert parts.state["layer0.weights"].dtype == {"float32": np.float32, "bf16": np.uint16}[stored]
    for name in whole.state:
        np.testing.assert_array_equal(parts.state[name], whole.state[name], err_msg=name)
    assert summary(tmp_path / "parts")["epochs"] == 2


def test_a_command_given_again_goes_on_with_its_run(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = ["train", str(made / "s/train.txt"), "--out", str(run), "--resume-existing", *SMALL]
    assert main([*train, "--epochs", "1"]) == 0
    assert summary(run)["epochs"] == 1
    assert main([*train, "--epochs", "2"]) == 0
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in log if record["record"] == "epoch"] == [1, 2]
    assert main([*train, "--epochs", "2"]) == 0  # nothing is left to do


def test_ctrl_c_saves_and_the_run_can_be_resumed(made: Path, tmp_path: Path) -> None:
    run, data = tmp_path / "run", str(made / "s/train.txt")
    process = subprocess.Popen(
        [*COMMAND, "train", data, "--out", str(run), "--epochs", "1000000", *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (run / "log.jsonl").exists():
        time.sleep(0.01)
    while process.poll() is None and '"record": "step"' not in (run / "log.jsonl").read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert f"dslide train {data} --resume {run}" in out
    assert summary(run)["interrupted"] is True
    progress = load_model(run, optimizer=True, verify=True).progress
    assert progress["step"] > 0
    epochs = str(progress["epoch"] + 2)  # if it was interrupted at the end of an epoch, that one has no step left
    assert main(["train", data, "--resume", str(run), "--epochs", epochs, "--quiet"]) == 0
    assert summary(run)["interrupted"] is False
    assert summary(run)["epochs"] == int(epochs)
    assert summary(run)["steps"] > progress["step"]


def test_evaluate_repeats_what_training_measured(capfd: pytest.CaptureFixture[str], made: Path) -> None:
    text = output(capfd, "evaluate", made / "run", made / "s/test.txt", "--k", "1,5")
    table = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("  ")}
    values = summary(made / "run")
    for title, name in (("P@k", "p"), ("R@k", "r"), ("nDCG@k", "ndcg"), ("PSP@k", "psp")):
        assert table[title] == [f"{values[f'{name}_at_{k}']:.4f}" for k in (1, 5)]
    assert "over 50 rows" in text


def test_evaluate_compares_approximate_prediction(capfd: pytest.CaptureFixture[str], made: Path) -> None:
    text = output(capfd, "evaluate", made / "run", made / "s/test.txt", "--approximate")
    assert re.search(r"approximate prediction, after \S+ s to open or make its index:", text)
    for k in (1, 3, 5):
        share = float(text.split(f"share of the exact top {k} that it finds: ")[1].split()[0])
        assert 0 <= share <= 1


def test_predict_writes_a_line_per_row_best_first(capfd: pytest.CaptureFixture[str], made: Path) -> None:
    names = set((made / "s/labels.txt").read_text().splitlines())
    plain = output(capfd, "predict", made / "run", made / "s/test.txt", "--k", "3").splitlines()
    scored = output(capfd, "predict", made / "run", made / "s/test.txt", "--k", "3", "--scores").splitlines()
    assert len(plain) == len(scored) == 50
    for row, row_scored in zip(plain, scored, strict=True):
        cells = [cell.rsplit(":", 1) for cell in row_scored.split("\t")]
        assert row.split("\t") == [name for name, _ in cells]
        assert {name for name, _ in cells} <= names
        scores = [float(score) for _, score in cells]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)


def test_predict_into_a_file_and_approximately(capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path) -> None:
    for more in ([], ["--approximate"]):
        target = tmp_path / f"out{len(more)}.txt"
        assert output(capfd, "predict", made / "run", made / "s/test.txt", "--output", target, *more) == ""
        assert len(target.read_text().splitlines()) == 50


def test_predict_more_labels_than_there_are(capfd: pytest.CaptureFixture[str], made: Path) -> None:
    lines = output(capfd, "predict", made / "run", made / "s/test.txt", "--k", "1000").splitlines()
    assert {len(set(line.split("\t"))) for line in lines} == {20}


def test_numbered_lines_from_stdin(
    capfd: pytest.CaptureFixture[str], made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (made / "s/test.txt").read_text().splitlines()[1:]
    expected = output(capfd, "predict", made / "run", made / "s/test.txt")
    stdin = io.TextIOWrapper(io.BytesIO(("\n".join(rows) + "\n").encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert output(capfd, "predict", made / "run", "-", "--format", "libsvm") == expected


TEXTS = ["ships\tthe boat sails the sea", "planes\tthe jet flies the sky", "ships\ta boat on the sea"] * 8


def test_text_end_to_end(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.tsv").write_text("\n".join(TEXTS) + "\n")
    data, run = tmp_path / "t.tsv", tmp_path / "run"
    options = ["--epochs", "30", "--learning-rate", "0.02", "--min-df", "2", "--ngrams", "2"]
    output(capfd, "train", data, "--test", data, "--out", run, *SMALL, *options)
    assert summary(run)["p_at_1"] == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"boat sea\nthe jet\n")))
    assert output(capfd, "predict", run, "-", "--k", "1") == "ships\nplanes\n"
    more = ["--resume", run, "--epochs", "31", "--quiet"]
    output(capfd, "train", data, *more)  # the same words and labels again
    assert summary(run)["epochs"] == 31


def test_labels_the_model_has_never_seen_are_misses(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "new.tsv").write_text("ships\tboat sea\nsubmarines\tboat sea\n")
    run = tmp_path / "run"
    options = ["--epochs", "30", "--learning-rate", "0.02"]
    output(capfd, "train", tmp_path / "t.tsv", "--out", run, *SMALL, *options)
    text = output(capfd, "evaluate", run, tmp_path / "new.tsv", "--k", "1")
    assert "P@k   0.5000" in text


def test_convert_and_train_from_the_folder(capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path) -> None:
    output(capfd, "convert", made / "s/train.txt", tmp_path / "c", "--label-names", made / "s/labels.txt")
    run = tmp_path / "run"
    output(capfd, "train", tmp_path / "c", "--out", run, "--epochs", "3", *SMALL)
    expected = load_model(made / "run", optimizer=True)
    found = load_model(run, optimizer=True)
    for name in expected.state:
        np.testing.assert_array_equal(found.state[name], expected.state[name], err_msg=name)
    assert found.label_names == expected.label_names


def test_one_based_training_data_makes_test_data_one_based(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # feature 1 means label 1, feature 2 label 2; read from 0, the test row would mean another feature
    (tmp_path / "train.txt").write_text("1 1:1\n2 2:1\n3 3:1\n" * 20)
    (tmp_path / "test.txt").write_text("2 2:1\n3 3:1\n")
    options = ["--epochs", "40", "--learning-rate", "0.02"]
    data = [tmp_path / "train.txt", "--test", tmp_path / "test.txt"]
    output(capfd, "train", *data, "--out", tmp_path / "run", *SMALL, *options)
    assert summary(tmp_path / "run")["p_at_1"] == 1
    assert "P@k   1.0000" in output(capfd, "evaluate", tmp_path / "run", tmp_path / "test.txt", "--k", "1")
    assert output(capfd, "predict", tmp_path / "run", tmp_path / "test.txt", "--k", "1") == "2\n3\n"


def test_plan_says_whether_it_fits(
    capfd: pytest.CaptureFixture[str], made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dslide.planner.calibration.TRIAL_SECONDS", 0.05)  # times are not looked at
    size = ["--features", "1000", "--labels", "20000", "--hidden", "16"]
    assert "does not fit into 1 MB" in output(capfd, "plan", *size, "--memory", "1MB")
    assert "MB fits into 900 TB" in output(capfd, "plan", made / "s/train.txt", "--hidden", "8", "--memory", "900TB")


def test_doctor_and_version(capfd: pytest.CaptureFixture[str]) -> None:
    text = output(capfd, "doctor")
    for name in ("dslide", "python", "numpy", "instruction set", "threads", "free memory", "mpi4py"):
        assert f"\n{name} " in "\n" + text
    assert output(capfd, "--version").startswith("dslide 0")


def test_help_needs_no_heavy_module() -> None:
    code = (
        "import sys; from dslide.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(str({'numpy', 'scipy', 'sklearn', 'dslide.data', 'dslide._core'} & set(sys.modules) or 0))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.strip() == "0"


def test_a_run_resumes_with_a_smaller_learning_rate(made: Path, tmp_path: Path) -> None:
    data, run = str(made / "s/train.txt"), tmp_path / "run"
    assert main(["train", data, "--out", str(run), "--epochs", "1", *SMALL]) == 0
    more = ["--resume", str(run), "--epochs", "2", "--learning-rate", "0", "--quiet"]
    before = load_model(run).state["layer0.weights"].copy()
    assert main(["train", data, *more]) == 0
    assert summary(run)["config"]["learning_rate"] == 0
    np.testing.assert_array_equal(load_model(run).state["layer0.weights"], before)  # it counts
