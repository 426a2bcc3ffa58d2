"""Runs that survive the loss of hosts. A program that stands for ssh makes hosts of this machine: it can refuse some of
them, or have little memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.test_elastic import ElasticRun, check_end, made, run, wait_for  # noqa: F401
from launch.test_launcher import LIMIT

from dslide.errors import ConfigError
from dslide.launch.remote_shell import SHELL, who_answers

pytestmark = pytest.mark.waiting
HOSTS = ["one", "two", "three"]
SSH = """#!{sh}
while true; do
    case "$1" in -o) shift 2 ;; -*) shift ;; *) break ;; esac
done
if [ -e "{folder}/down-$1" ]; then echo "$1: no route" >&2; exit 255; fi
if [ -e "{folder}/hung-$1" ]; then sleep 60; fi
if [ -e "{folder}/weak-$1" ]; then case "$2" in *agent*) ulimit -v 100000 ;; esac; fi
shift
exec sh -c "$*"
"""
# A supervisor with less patience than users need, for the command that `dslide train` would run.
SUPERVISE = """
import sys
from pathlib import Path
from dslide.launch.mpiexec import read_hosts
from dslide.comm.liveness import RetryPolicy
from dslide.launch.elastic import Supervisor

folder, file, least, *command = sys.argv[1:]
hosts = read_hosts(file) if file else []
policy = RetryPolicy(failures=4, pause=0.1, probe=0.5, notice=3, enough_hosts=3, answer=5)
ranks = sum(host.ranks for host in hosts) or 2
sys.exit(Supervisor(command, Path(folder), ranks, hosts, int(least), 3.0, policy).run())
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which files say how hosts behave."""
    program = tmp_path / "ssh"
    program.write_text(SSH.format(sh=shutil.which("sh"), folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv(SHELL, str(program))
    (tmp_path / "hosts").write_text("\n".join(HOSTS) + "\n")
    return tmp_path


@pytest.fixture
def supervise(
    ssh: Path,
    run: Callable[..., ElasticRun],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., ElasticRun]:
    """Starts runs on the three hosts."""

    def start(least: int = 1) -> ElasticRun:
        start = [sys.executable, "-c", SUPERVISE, str(ssh / "run"), str(ssh / "hosts"), str(least)]
        monkeypatch.setattr("integration.test_elastic.COMMAND", [*start, sys.executable, "-m", "dslide.cli", "train"])
        return run("--hosts", ssh / "hosts")

    return start


def test_hosts_that_answer(ssh: Path) -> None:
    (ssh / "down-two").touch()
    (ssh / "hung-three").touch()
    begin = time.monotonic()
    expected = {"one": "", "two": "two: no route", "three": "no answer within 3 s", "localhost": ""}
    assert who_answers([*HOSTS, "localhost"], 3.0) == expected
    assert time.monotonic() - begin < 10
    (ssh / "ssh").unlink()
    with pytest.raises(ConfigError, match="ssh: can't be run, so hosts can't be reached: No such file"):
        who_answers(HOSTS, 1.0)


def test_a_host_is_lost_and_comes_back(supervise: Callable[..., ElasticRun], ssh: Path) -> None:
    job = supervise()
    ranks = job.train()
    (ssh / "down-two").touch()
    os.kill(ranks[1], signal.SIGKILL)
    job.train(1, ranks=2)
    assert job.events("lost")[0]["hosts"] == job.events("no-answer")[0]["hosts"] == ["two"]
    assert job.events("start")[1]["hosts"] == ["one", "three"]
    (ssh / "down-two").unlink()
    told = check_end(job, 1)
    assert job.events("return")[0]["hosts"] == ["two"]
    assert job.starts()[2]["step"] > job.starts()[1]["step"]
    assert "two does not answer: two: no route" in told


def test_a_host_that_was_told_to_end_is_not_used_for_a_while(supervise: Callable[..., ElasticRun]) -> None:
    job = supervise()
    ranks = job.train()
    wait_for(lambda: '"step"' in (job.folder / "log.jsonl").read_text())
    os.kill(ranks[2], signal.SIGTERM)
    job.train(1, ranks=2)
    assert job.events("notice")[0]["hosts"] == ["three"]
    assert job.events("start")[1]["hosts"] == ["one", "two"]
    job.process.send_signal(signal.SIGINT)
    job.end(130)


def test_a_host_that_fails_again_and_again_is_left_out(supervise: Callable[..., ElasticRun], ssh: Path) -> None:
    (ssh / "weak-three").touch()
    job = supervise(2)
    told = check_end(job, 3, ranks=2)
    assert "three failed 3 times without progress; left out" in told
    assert [event["hosts"] for event in job.events("start")] == [HOSTS] * 3 + [["one", "two"]]


def test_too_few_hosts_are_waited_for_but_not_for_ever(supervise: Callable[..., ElasticRun], ssh: Path) -> None:
    for host in ("one", "two"):
        (ssh / f"down-{host}").touch()
    job = supervise(2)
    told = job.end(4)
    assert told.count("1 rank could be started, fewer than 2; waiting for hosts") == 1
    assert told.endswith("given up: there are no hosts for 2 ranks\n")


def test_a_run_that_fails_again_and_again_is_given_up(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUPERVISE, str(tmp_path / "run"), "", "1", sys.executable, "-c", "pass"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert ended.returncode == 4
    assert ended.stderr.count("starting 2 ranks") == 5
    assert "given up after 4 failures without progress" in ended.stderr
    assert not (tmp_path / "run").exists()
