"""Runs that survive: real ranks are killed, stopped, told to end, starved, and the run still comes to its end, with
little of it done twice and no process left behind."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launch.test_launcher import processes_of

from dslide.cli import main

pytestmark = pytest.mark.waiting
RANKS = 3
LIMIT = 120.0  # seconds for any run here
SAVED_EVERY = 0.3
EPOCHS, STEPS = 15, 32  # steps of each epoch
COMMAND = [sys.executable, "-m", "dslide.cli", "train"]
OPTIONS = ["--hidden", "16", "--batch-size", "64", "--threads", "1", "--quiet", "--watchdog", "3"]
OPTIONS += ["--epochs", str(EPOCHS), "--checkpoint-seconds", str(SAVED_EVERY), "--elastic"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data that takes some seconds to learn."""
    folder = tmp_path_factory.mktemp("data") / "s"
    size = ["--rows", "2000", "--features", "300", "--labels", "500", "--test-rows", "200", "--seed", "1"]
    assert main(["synth", str(folder), *size]) == 0
    return folder


class ElasticRun:
    """A run with --elastic, as its user sees it."""

    def __init__(self, data: Path, folder: Path, *more: object, environment: dict[str, str] | None = None):
        self.folder = folder
        words = [data / "train.txt", "--test", data / "test.txt", "--out", folder, *OPTIONS, *more]
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def starts(self, rank: int = 0) -> list[dict[str, Any]]:
        """What a rank wrote to its log each time training began or went on."""
        log = self.folder / ("log.jsonl" if rank == 0 else f"log-{rank}.jsonl")
        lines = log.read_text().splitlines() if log.exists() else []
        return [record for record in map(json.loads, lines) if record["record"] == "start"]

    def train(self, time_of: int = 0, ranks: int = RANKS) -> dict[int, int]:
        """Waits until all ranks train, for the first time or after so many faults; process ids by rank."""

        def begun() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return all(len(self.starts(rank)) > time_of for rank in range(ranks))

        wait_for(begun)
        return {rank: self.starts(rank)[-1]["process"] for rank in range(ranks)}

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """Those of a kind, or all."""
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if kind in ("", event["event"])]

    def end(self, code: int = 0) -> str:
        """What was said on stderr, when the run has ended."""
        out, err = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == code, (out, err)
        assert "Traceback" not in err
        return err

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Iterator[Callable[..., ElasticRun]]:
    """Starts runs; afterwards no process of them must be left."""
    begun: list[ElasticRun] = []

    def start(*more: object, environment: dict[str, str] | None = None) -> ElasticRun:
        begun.append(ElasticRun(made, tmp_path / "run", *(more or ("--ranks", RANKS)), environment=environment))
        return begun[-1]

    yield start
    for one in begun:
        one.process.kill()
        one.process.communicate()
    end = time.monotonic() + 15
    while (left := processes_of(tmp_path)) and time.monotonic() < end:
        time.sleep(0.05)
    for process in left:
        os.kill(int(process.split()[0]), signal.SIGKILL)
    assert not left


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def check_end(run: ElasticRun, faults: int, ranks: int = RANKS, epochs: int = EPOCHS) -> str:
    """The run comes to its end as if nothing had happened: everything learned, all epochs done, each fault told."""
    err = run.end()
    summary = run.summary()
    assert (summary["epochs"], summary["ranks"]) == (epochs, ranks)
    assert summary["p_at_1"] > 0.95
    assert len(run.events("lost")) + len(run.events("notice")) == faults
    assert err.count("dslide: elastic: ") == len(run.events())
    return err


# ---- ranks of this machine ------------------------------------------------------------------------------------------


def test_killed_ranks_cost_no_more_than_what_was_not_saved(run: Callable[..., ElasticRun]) -> None:
    """At random moments of training: in the middle of a step, of an exchange, of a save."""
    chance, job = random.Random(0), run()
    for fault in range(2):
        ranks = job.train(fault)
        time.sleep(chance.uniform(0, 2 * SAVED_EVERY))
        os.kill(chance.choice(list(ranks.values())), signal.SIGKILL)
    assert "exited without reporting (killed by SIGKILL)" in check_end(job, 2)
    log = [json.loads(line) for line in (job.folder / "log.jsonl").read_text().splitlines()]
    epochs = [(record["epoch"], record["time"]) for record in log if record["record"] == "epoch"]
    assert sorted({epoch for epoch, _ in epochs}) == list(range(1, EPOCHS + 1))
    for start in job.starts()[1:]:  # what was done before it and is done again took no longer than saves are apart
        again = [when for epoch, when in epochs if epoch * STEPS > start["step"] and when < start["time"]]
        assert max(again, default=0) - min(again, default=0) < SAVED_EVERY + 5


def test_a_rank_killed_before_training_begins(run: Callable[..., ElasticRun]) -> None:
    job = run()
    wait_for(lambda: len(rank_processes(job)) == RANKS)
    os.kill(rank_processes(job)[1], signal.SIGKILL)
    check_end(job, 1)


def rank_processes(job: ElasticRun) -> list[int]:
    """Ranks from the moment they exist."""
    lines = [line.split() for line in processes_of(job.folder) if "mpiexec" not in line and "proxy" not in line]
    return [int(words[0]) for words in lines if int(words[0]) != job.process.pid]


def test_a_stopped_rank(run: Callable[..., ElasticRun]) -> None:
    job = run()
    os.kill(job.train()[2], signal.SIGSTOP)
    assert "rank 2 silent for 3 s" in check_end(job, 1)


def test_all_ranks_stopped(run: Callable[..., ElasticRun]) -> None:
    job = run("--ranks", RANKS, "--epochs", 2 * EPOCHS)  # not done before they are stopped
    ranks = job.train()
    logs = [job.folder / name for name in ("log.jsonl", "log-1.jsonl", "log-2.jsonl")]
    wait_for(lambda: all('"record": "step"' in log.read_text() for log in logs))
    time.sleep(2.5)  # more than a heartbeat, which tells of the step: until then long silence is allowed
    for rank in ranks.values():
        os.kill(rank, signal.SIGSTOP)
    # Those whose last heartbeats came a moment before that of others may be named alone.
    silent = r"ranks? [012]((, | and )[012])* \(.*\) sent no heartbeat for 10 s; given up"
    assert re.search(silent, check_end(job, 1, epochs=2 * EPOCHS))


def test_a_rank_that_is_told_to_end(run: Callable[..., ElasticRun]) -> None:
    job = run()
    ranks = job.train()
    log = job.folder / "log-1.jsonl"
    wait_for(lambda: log.exists() and '"record": "step"' in log.read_text())
    os.kill(ranks[1], signal.SIGTERM)
    begin = time.monotonic()
    job.train(1)
    assert time.monotonic() - begin < 20
    told = check_end(job, 1)
    assert re.search(r"rank 1 \(.*\) received SIGTERM after [\d,]+ steps; the network is saved", told)
    saved = int(re.findall(r"after ([\d,]+) steps", told)[0].replace(",", ""))
    assert job.starts()[1]["step"] == saved  # nothing was done twice


def test_without_elastic_a_rank_that_is_told_to_end_ends_the_job(made: Path, tmp_path: Path) -> None:
    words = [made / "train.txt", "--out", tmp_path / "run", "--ranks", 2, *OPTIONS[:-1]]
    process = subprocess.Popen([*COMMAND, *map(str, words)], stderr=subprocess.PIPE, text=True)
    log = tmp_path / "run" / "log-1.jsonl"
    wait_for(lambda: log.exists() and '"record": "step"' in log.read_text())
    os.kill(json.loads(log.read_text().splitlines()[0])["process"], signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 143
    assert err.count("\n") == 1
    assert f"to resume: dslide train {made / 'train.txt'} --resume {tmp_path / 'run'}" in err


def test_a_full_disk_on_one_rank(run: Callable[..., ElasticRun]) -> None:
    """Here a limit on the size of its files stands for it; the rank that is started in its place has none."""
    job = run()
    resource.prlimit(job.train()[1], resource.RLIMIT_FSIZE, (1000, 1000))
    assert re.search("rank 1.*File too large", check_end(job, 1))


def test_a_rank_that_runs_out_of_memory(run: Callable[..., ElasticRun]) -> None:
    """It has what it holds and gets no more: with these settings every array is asked of the system."""
    job = run(environment={"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TOP_PAD_": "0"})
    resource.prlimit(job.train()[1], resource.RLIMIT_AS, (1 << 20, 1 << 20))
    assert re.search("rank 1.*: out of memory", check_end(job, 1))


def test_one_rank_alone(run: Callable[..., ElasticRun]) -> None:
    job = run("--ranks", 1)
    os.kill(job.train(ranks=1)[0], signal.SIGKILL)
    check_end(job, 1, ranks=1)


# ---- the supervisor itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_do_not_outlive_their_supervisor(run: Callable[..., ElasticRun], fault: signal.Signals) -> None:
    job = run()
    ranks = job.train()
    job.process.send_signal(fault)
    wait_for(lambda: not any(Path(f"/proc/{rank}/exe").exists() for rank in ranks.values()), 20)


def test_an_interrupted_run_is_saved_and_goes_on_when_it_is_started_again(run: Callable[..., ElasticRun]) -> None:
    job = run()
    job.train()
    job.process.send_signal(signal.SIGINT)
    job.end(130)
    steps = job.summary()["steps"]
    assert [event["event"] for event in job.events()] == ["start", "ended"]
    job = run()
    job.end()
    assert job.starts()[1]["step"] == steps
    assert job.summary()["epochs"] == EPOCHS
    run().end()  # and once more, when there is nothing left to do


def refused(capfd: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["train", *map(str, words)]) == 2
    return capfd.readouterr().err.removeprefix("dslide: error: ")


def test_what_makes_no_sense_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\nb\n")
    elastic = ["x", "--elastic", "--hosts", tmp_path / "hosts"]
    assert refused(capfd, "x", "--min-ranks", 2).startswith("min-ranks: only a run with --elastic and --hosts")
    assert refused(capfd, "x", "--elastic", "--ranks", 2, "--min-ranks", 2).startswith("min-ranks: only")
    assert refused(capfd, *elastic, "--min-ranks", 3) == "min-ranks: expected 1 to 2, the ranks there are, not 3\n"
    assert refused(capfd, *elastic, "--min-ranks", 0).startswith("min-ranks: expected 1 to 2")
    assert "give --out in place of --resume" in refused(capfd, *elastic, "--resume", "run")
    assert "can't be read again" in refused(capfd, "-", "--elastic")


def test_a_mistake_is_not_tried_again(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = refused(capfd, tmp_path / "none.txt", "--elastic", "--ranks", 2, "--out", tmp_path / "run")
    assert said.count("none.txt") == 1
    assert said.count("starting 2 ranks") == 1
    assert said.rstrip().endswith("exited with code 2; not restarted")
    assert not (tmp_path / "run").exists()
