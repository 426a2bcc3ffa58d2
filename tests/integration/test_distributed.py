"""Training, evaluation and prediction on real MPI ranks, through the command line and the Python interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.mpi_run import mpiexec, run_mpi

from dslide.checkpoint.saved_model import load_model
from dslide.cli import main

COMMAND = [sys.executable, "-m", "dslide.cli"]
LIMIT = 60  # seconds for any command here
# 24 tables: a rounding error may move a neuron to another bucket, and so into a batch; with these it happens not to.
SMALL = [
    "--hidden",
    "18",
    "--batch-size",
    "64",
    "--output",
    "lsh",
    "--hash-hits",
    "3",
    "--random-negatives",
    "40",
    "--wire",
    "float32",
    "--bucket-size",
    "0",
    "--epochs",
    "3",
    "--rebuild-every",
    "4",
    "--threads",
    "1",
    "--tables",
    "24",
]


def dslide(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT, check=False)


def works(*arguments: object) -> str:
    done = dslide(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def summary(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return content


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a run of one rank on it."""
    mpiexec()
    folder = tmp_path_factory.mktemp("mpi")
    size = ["--rows", "900", "--test-rows", "60", "--features", "400", "--labels", "301"]
    assert main(["synth", str(folder / "s"), *size]) == 0
    data = [str(folder / "s/train.txt"), "--test", str(folder / "s/test.txt")]
    assert main(["train", *data, "--out", str(folder / "one"), *SMALL, "--quiet"]) == 0
    return folder


@pytest.fixture(scope="module")
def trained_by(made: Path) -> Callable[[int], Path]:
    """The run of a number of ranks, which is trained once."""

    @cache
    def train(ranks: int) -> Path:
        run = made / f"ranks{ranks}"
        data = [made / "s/train.txt", "--test", made / "s/test.txt"]
        said = works("train", *data, "--out", run, *SMALL, "--ranks", ranks)
        assert said.count("run folder:") == 1  # one rank speaks
        return run

    return train


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_a_run_on_several_ranks_is_that_of_one(made: Path, trained_by: Callable[[int], Path], ranks: int) -> None:
    """Losses, test metrics and every weight after 45 steps with hash tables, to rounding."""
    run = trained_by(ranks)
    one, many = summary(made / "one"), summary(run)
    assert many["ranks"] == ranks == len(many["per_rank"])
    for name in ("steps", "samples", "parameters", "test_rows"):
        assert many[name] == one[name]
    for name in ("loss", "active_neurons_mean", "p_at_1", "p_at_5", "ndcg_at_5"):
        assert_allclose(many[name], one[name], rtol=1e-3, err_msg=name)
    expected, found = (load_model(folder).state for folder in (made / "one", run))
    for name in expected:
        assert_allclose(found[name], expected[name], atol=2e-3, err_msg=name)
    logs = {"log.jsonl", *(f"log-{rank}.jsonl" for rank in range(1, ranks))}
    assert {path.name for path in run.iterdir()} == {"checkpoints", "summary.json", *logs}


def test_the_summary_has_what_was_exchanged(made: Path, tmp_path: Path) -> None:
    data = [made / "s/train.txt", "--test", made / "s/test.txt"]
    works("train", *data, "--out", tmp_path / "run", *SMALL, "--ranks", 4, "--linear-negatives", 0)
    values = summary(tmp_path / "run")
    # 18 units of 64 rows gathered and summed, 3 of 4 parts crossing; 2 numbers a row for the normaliser, rankings of 3
    # hash hits and 8 labels that the label prior looks up; gradients of 32 scales
    exchanged = 3 * (64 * (2 * 18 / 4 + 2 + 3 + 8) * 4 + 32 * 8)
    assert exchanged * 0.7 < values["bytes_sent_per_step"] < exchanged * 1.3
    assert 0 < values["comm_seconds"] < values["seconds"]
    assert values["comm_seconds"] + values["compute_seconds"] == pytest.approx(values["seconds"], rel=0.2)
    assert 0 <= values["overlap"] <= 1
    assert 1 <= values["imbalance"] < 1.1
    for rank, own in enumerate(values["per_rank"]):
        assert own["rank"] == rank
        assert own["bytes_sent_per_step"] > 0
        assert 0 < own["peak_rss_bytes"] < values["planned_bytes"]
    assert summary(made / "one")["bytes_sent_per_step"] == 0


def test_any_number_of_ranks_opens_the_model(made: Path, trained_by: Callable[[int], Path]) -> None:
    run = trained_by(3)
    expected = works("predict", run, made / "s/test.txt", "--k", 4)
    assert len(expected.splitlines()) == 60
    assert works("predict", run, made / "s/test.txt", "--k", 4, "--ranks", 2) == expected
    tables = [
        works("evaluate", run, made / "s/test.txt", *options).split("exact prediction")[0]
        for options in ([], ["--ranks", 4])
    ]
    assert tables[0] == tables[1]
    assert "P@k" in tables[0]


def test_a_run_resumes_on_another_number_of_ranks(made: Path) -> None:
    """Two ranks do the first epoch, three the rest. The learning rate must be constant: its schedule runs over all
    epochs asked for."""
    options = [*SMALL, "--output", "full", "--schedule", "constant"]
    whole, broken = made / "whole", made / "broken"
    works("train", made / "s/train.txt", "--out", whole, *options, "--epochs", 2)
    works("train", made / "s/train.txt", "--out", broken, *options, "--epochs", 1, "--ranks", 2)
    works("train", made / "s/train.txt", "--resume", broken, "--epochs", 2, "--ranks", 3)
    expected, found = (load_model(folder, optimizer=True).state for folder in (whole, broken))
    for name in expected:
        assert_allclose(found[name], expected[name], atol=2e-3, err_msg=name)


def test_ranks_under_mpiexec_find_each_other(made: Path) -> None:
    run = made / "by-mpiexec"
    done = subprocess.run(
        [mpiexec(), "-n", "2", *COMMAND, "train", str(made / "s/train.txt"), "--out", str(run), *SMALL],
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert summary(run)["ranks"] == 2


def test_a_bad_file_is_said_once(made: Path) -> None:
    done = dslide("train", made / "nowhere.txt", "--ranks", 3, *SMALL)
    assert done.returncode == 2
    assert done.stderr.count("nowhere.txt") == 1


def test_different_data_on_one_rank_is_refused(made: Path, tmp_path: Path) -> None:
    """Each rank reads the same path in a folder of its own; one of the files is another."""
    for rank in range(3):
        (tmp_path / str(rank)).mkdir()
        text = (made / "s/train.txt").read_text()
        (tmp_path / str(rank) / "train.txt").write_text(text if rank != 1 else text.replace(" 5:", " 6:", 1))
    program = f"""
import os, sys
from dslide.comm import launched_as
os.chdir({str(tmp_path)!r} + "/" + str(launched_as()[0]))
from dslide.cli import main
sys.exit(main(["train", "train.txt", "--out", "run", *{SMALL!r}]))
"""
    run = run_mpi(3, program, timeout=LIMIT)
    assert run.code != 0
    assert run.stderr.count("ranks don't agree on the data (its checksum): rank 0 has") == 1
    assert "rank 1 has" in run.stderr


def test_too_little_memory_is_said_before_training(made: Path) -> None:
    done = dslide("train", made / "s/train.txt", "--ranks", 2, "--hidden", 16_000_000)
    assert done.returncode == 2
    assert "on 2 of 2 ranks needs about" in done.stderr
    assert done.stderr.count("dslide: error: ") == done.stderr.count("\n") == 1


ESTIMATOR = """
import sys
import numpy as np
import scipy.sparse as sp
from dslide import SlideClassifier
from dslide.comm import job

rng = np.random.default_rng(3)
y = rng.integers(0, 40, 400)
x = sp.csr_matrix(np.eye(40, dtype=np.float32)[y] + (rng.random((400, 40)) < 0.05))
model = SlideClassifier(hidden=(15,), epochs=40, learning_rate=0.02, batch_size=50, wire="float32", threads=1).fit(x, y)
folder = sys.argv[1]
model.save(folder)
again = SlideClassifier.load(folder)
same = np.array_equal(again.predict(x), model.predict(x))
top = model.predict_topk(x[:5], 3)[0].tolist()
near = model.decision(x[:5], [7, 31])
score = model.score(x, y)
if job().rank == 0:
    print(job().size, round(score, 3), same, top, np.round(near, 2).tolist())
"""


def test_the_estimator_inside_mpiexec_is_the_same(tmp_path: Path) -> None:
    said = []
    for size in (1, 3):
        run = run_mpi(size, ESTIMATOR, tmp_path / f"model{size}", timeout=LIMIT)
        assert run.code == 0, run.stderr
        ranks, *rest = run.stdout.split(" ", 1)
        assert int(ranks) == size
        said.append(rest)
    assert said[0] == said[1]
    assert " True " in said[0][0]
    assert float(said[0][0].split()[0]) > 0.9


PARTIAL = """
import os, signal
import numpy as np
from dslide import SlideClassifier
from dslide.comm import job
from dslide.errors import CommError

x = np.eye(40, dtype=np.float32)[np.arange(400) % 40]
y = np.arange(400) % 40
options = {"hidden": (16,), "batch_size": 50, "wire": "float32", "threads": 1, "activation": "linear",
           "dropout_hidden": 0.0}
model, sent = SlideClassifier(**options), []
for wire in ("float32", "bf16", "int8"):
    before = job().bytes_sent
    model.set_params(wire=wire).partial_fit(x, y, classes=np.arange(40))
    sent.append(job().bytes_sent - before)
if job().rank == 0:
    print(sent, flush=True)
assert job().limit == 60
model.set_params(watchdog=1.5)
try:
    for _ in range(100_000):
        model.partial_fit(x, y)
        if job().rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
except CommError as error:
    print(error, flush=True)
    os._exit(7)
"""


@pytest.mark.waiting
def test_wire_and_watchdog_changed_between_calls_of_partial_fit_count() -> None:
    begin = time.monotonic()
    run = run_mpi(2, PARTIAL, timeout=LIMIT)
    assert time.monotonic() - begin < 30  # the first limit was 60 s
    sent, error = run.stdout.splitlines()
    float32, bf16, int8 = json.loads(sent)
    # In 8 steps of 50 rows 8 units are gathered and 8 summed, of 4, 2 or 1 bytes, int8 with a scale of 4 bytes a row.
    assert float32 - bf16 == pytest.approx(8 * 50 * 16 * 2, abs=3000)  # before the second call ranks compare options
    assert bf16 - int8 == pytest.approx(8 * 50 * (16 - 2 * 4), abs=100)
    assert "rank 1 silent for 1.5 s; given up" in error


API = """
import json, sys
import dslide
from dslide.comm import job

folder, options = sys.argv[1], json.loads(sys.argv[2])
result = dslide.train(f"{folder}/s/train.txt", options, test=f"{folder}/s/test.txt", out=f"{folder}/by-python")
metrics = dslide.evaluate(result.folder, f"{folder}/s/test.txt")
more = dslide.resume(result.folder, f"{folder}/s/train.txt", epochs=4)
found = [result.summary["steps"], metrics["p_at_1"], more.summary["steps"], str(result.folder)]
with open(f"{folder}/said-{job().rank}", "w") as file:  # lines of ranks on stdout may mix
    json.dump(found, file)
"""


def test_whole_runs_from_python_inside_mpiexec(made: Path, trained_by: Callable[[int], Path]) -> None:
    """Two ranks train, evaluate and resume; the run is that of `dslide train --ranks 2`."""
    options = {
        name.removeprefix("--").replace("-", "_"): json.loads(value) if value.isdigit() else value
        for name, value in zip(SMALL[::2], SMALL[1::2], strict=True)
    }
    run = run_mpi(2, API, made, json.dumps(options), timeout=LIMIT)
    assert run.code == 0, run.stderr
    assert (run.stdout, run.stderr) == ("", "")
    expected = summary(trained_by(2))
    for rank in range(2):
        steps, precision, more, folder = json.loads((made / f"said-{rank}").read_text())
        assert (steps, more, folder) == (expected["steps"], expected["steps"] * 4 // 3, str(made / "by-python"))
        assert precision == expected["p_at_1"]


def long_run(made: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    """A long training, with its ranks' process ids in what it says in its logs."""
    return subprocess.Popen(
        [*COMMAND, "train", str(made / "s/train.txt"), "--out", str(folder), *SMALL, "--epochs", "100000", *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ranks_of(run: Path) -> dict[int, int]:
    """Process ids by rank, once all have written to their logs."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        logs = sorted(run.glob("log*.jsonl")) if run.exists() else []
        starts = [json.loads(log.read_text().splitlines()[0]) for log in logs if log.read_text().count("\n") > 1]
        if len(starts) == 3:
            return {start["rank"]: start["process"] for start in starts}
        time.sleep(0.05)
    raise AssertionError("the ranks have not begun to train")


def all_ended(processes: list[int]) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not any(Path(f"/proc/{process}").exists() for process in processes):
            return True
        time.sleep(0.05)
    return False


def test_a_killed_rank_ends_the_job(made: Path, tmp_path: Path) -> None:
    job = long_run(made, tmp_path / "run", "--ranks", "3", "--quiet")
    ranks = ranks_of(tmp_path / "run")
    os.kill(ranks[1], signal.SIGKILL)
    begin = time.monotonic()
    _, err = job.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert job.returncode == 4, err
    assert "rank 1" in err
    assert all_ended(list(ranks.values()))


@pytest.mark.waiting
def test_a_silent_rank_is_named_by_the_others(made: Path, tmp_path: Path) -> None:
    job = long_run(made, tmp_path / "run", "--ranks", "3", "--quiet", "--watchdog", "2")
    ranks = ranks_of(tmp_path / "run")
    os.kill(ranks[2], signal.SIGSTOP)
    try:
        _, err = job.communicate(timeout=30)
    finally:
        if Path(f"/proc/{ranks[2]}").exists():
            os.kill(ranks[2], signal.SIGCONT)
    assert job.returncode == 4, err
    assert "of step" in err
    assert "rank 2 silent for 2 s" in err
    assert "Traceback" not in err
    assert all_ended(list(ranks.values()))


def test_ctrl_c_saves_the_network_of_all_ranks(made: Path, tmp_path: Path) -> None:
    job = long_run(made, tmp_path / "run", "--ranks", "3", "--quiet")
    ranks = ranks_of(tmp_path / "run")
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=30)
    assert job.returncode == 130, err
    assert "the network is saved, to resume:" in out
    assert summary(tmp_path / "run")["interrupted"] is True
    steps = load_model(tmp_path / "run", optimizer=True).progress["step"]
    assert steps == summary(tmp_path / "run")["steps"] > 0
    assert all_ended(list(ranks.values()))


def test_popular_labels_load_all_ranks_alike(made: Path) -> None:
    """Labels of the data are numbered by popularity (Zipf), rows have several: shares of active neurons differ by
    less than a tenth, with sets shared by the batch and with sets per row."""
    size = ["--rows", "3000", "--test-rows", "1", "--features", "500", "--labels", "20000"]
    works("synth", made / "zipf", *size)
    for ranks, sets in ((8, "shared"), (4, "row")):
        run = made / f"zipf-{ranks}-{sets}"
        works("train", made / "zipf/train.txt", "--out", run, "--ranks", ranks, "--active-sets", sets, "--epochs", 1,
              "--hidden", 16)  # fmt: skip
        assert summary(run)["imbalance"] < 1.1
        shares = [own["active_neurons_mean"] for own in summary(run)["per_rank"]]
        assert np.max(shares) / np.mean(shares) == pytest.approx(summary(run)["imbalance"])
