"""One process at a time trains a run; the lock of one that is gone holds nobody up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inprocess import run_ranks

import dslide
from dslide import SlideClassifier
from dslide.errors import ConfigError, ModelError
from dslide.training import run_lock
from dslide.training.callbacks import Callback, RunInfo
from dslide.training.run_lock import ELASTIC_JOB, NAME, RunLock

OPTIONS: dict[str, Any] = {"hidden": (4,), "threads": 1, "validation": 0.0, "batch_size": 8}
HOLD = """
import sys, time
from pathlib import Path
from dslide.training.run_lock import RunLock
RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.txt"
    path.write_text("".join(f"{i % 4} {i % 5}:1\n" for i in range(24)))
    return path


@pytest.fixture
def run(tmp_path: Path, data: Path) -> Path:
    dslide.train(data, out=tmp_path / "run", epochs=1, **OPTIONS)
    return tmp_path / "run"


@pytest.fixture
def other(run: Path) -> Any:
    """Another process that trains the run."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def write_lock(run: Path, seconds: float = 0.0, **changes: Any) -> None:
    """The lock of another process, last touched so many seconds ago."""
    about = {"host": "elsewhere", "process": 7, "started": "1", "machine": "another", "job": ""} | changes
    (run / NAME).write_text(json.dumps(about))
    then = time.time() - seconds
    os.utime(run / NAME, (then, then))


def test_a_second_process_is_told_who_trains(run: Path, data: Path, other: subprocess.Popen[str]) -> None:
    before = sorted((run / "checkpoints").iterdir())
    words = rf"run: process {other.pid} on \S+ trains this run; wait until it ends, or end it$"
    with pytest.raises(ConfigError, match=words):
        dslide.resume(run, data, epochs=2)
    assert sorted((run / "checkpoints").iterdir()) == before
    other.kill()
    other.wait()
    dslide.resume(run, data, epochs=2)  # the lock is stale
    assert not (run / NAME).exists()


def test_a_stopped_process_keeps_its_lock(run: Path, data: Path, other: subprocess.Popen[str]) -> None:
    os.kill(other.pid, signal.SIGSTOP)
    os.utime(run / NAME, (0, 0))
    with pytest.raises(ConfigError, match=f"process {other.pid} on"):
        dslide.resume(run, data, epochs=2)


def test_a_process_that_got_the_same_id_is_not_the_holder(run: Path, data: Path) -> None:
    lock = RunLock(run)
    about = json.loads((run / NAME).read_text())
    lock.release()
    write_lock(run, **(about | {"started": "1"}))
    dslide.resume(run, data, epochs=2)


def test_training_holds_the_lock_and_gives_it_back(run: Path, data: Path) -> None:
    """Also if it ends with an error, in whatever part."""

    class Check(Callback):
        def on_run(self, info: RunInfo) -> None:
            with pytest.raises(ConfigError, match="run: this process trains this run"):
                dslide.resume(run, data, epochs=2)
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        dslide.resume(run, data, epochs=2, callbacks=[Check()])
    assert not (run / NAME).exists()

    class Fail(Callback):
        def on_step(self, *_: object) -> None:
            assert (run / NAME).exists()
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        dslide.resume(run, data, epochs=2, callbacks=[Fail()])
    assert not (run / NAME).exists()


def test_two_new_runs_of_one_name(tmp_path: Path, data: Path) -> None:
    class Begin(Callback):
        def on_run(self, info: RunInfo) -> None:
            dslide.train(data, out=info.folder, epochs=1, **OPTIONS)

    with pytest.raises(ConfigError, match="run: exists already; give another --out"):
        dslide.train(data, out=tmp_path / "run", epochs=1, callbacks=[Begin()], **OPTIONS)
    assert dslide.load_model(tmp_path / "run").progress["epoch"] == 1


def test_the_lock_is_that_of_rank_0(run: Path, data: Path, other: subprocess.Popen[str]) -> None:
    def work(comm: Any) -> str:
        with pytest.raises(ConfigError) as raised:
            dslide.resume(run, data, epochs=2, comm=comm)
        return str(raised.value)

    first, second = run_ranks(2, work)
    assert first == second
    assert f"process {other.pid} on" in first
    other.kill()
    other.wait()
    run_ranks(2, lambda comm: dslide.resume(run, data, epochs=2, comm=comm))


@pytest.mark.parametrize("seconds", [0.0, 50.0, 70.0, -1e6])
def test_on_another_machine_the_time_of_the_last_sign_decides(run: Path, data: Path, seconds: float) -> None:
    write_lock(run, seconds)
    if 0 <= seconds <= run_lock.STALE:
        with pytest.raises(ConfigError, match=r"process 7 on elsewhere, last seen \d+ s ago, trains this run"):
            dslide.resume(run, data, epochs=2)
    else:
        dslide.resume(run, data, epochs=2)


def test_an_elastic_run_takes_over_from_its_own_start(run: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another host, since the first one was lost."""
    write_lock(run, job="abc")
    monkeypatch.setenv(ELASTIC_JOB, "abd")
    with pytest.raises(ConfigError, match="process 7 on elsewhere"):
        dslide.resume(run, data, epochs=2)
    monkeypatch.setenv(ELASTIC_JOB, "abc")
    dslide.resume(run, data, epochs=2)


def test_a_start_that_resumes_waits_for_the_end_of_another(
    run: Path, monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[str]
) -> None:
    """Such as the ranks of an elastic run whose supervisor was killed; the estimator waits too."""
    from dslide import api

    monkeypatch.setattr(api, "LONGEST_WAIT", 0.3)
    model = SlideClassifier(hidden=(4,), epochs=1, threads=1)
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=f"process {other.pid} on"):
        model.fit(np.eye(4), [0, 1, 2, 3], out=run)
    assert time.monotonic() - begin >= 0.3
    monkeypatch.setattr(api, "LONGEST_WAIT", 60.0)
    other.kill()
    other.wait()
    model.fit(np.eye(4), [0, 1, 2, 3], out=run.with_name("fresh"))


def test_a_process_that_lost_its_lock_completes_no_checkpoint(run: Path, data: Path) -> None:
    """It gave no sign of life for too long, and another machine has taken over."""
    before = sorted((run / "checkpoints").iterdir())

    class Lose(Callback):
        def on_step(self, *_: object) -> None:
            write_lock(run)

    with pytest.raises(ModelError, match="process 7 on elsewhere has taken over the run"):
        dslide.resume(run, data, epochs=2, callbacks=[Lose()], checkpoint_seconds=0.0)
    assert sorted((run / "checkpoints").iterdir()) == before
    assert json.loads((run / NAME).read_text())["host"] == "elsewhere"


def test_the_holder_gives_signs_of_life(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "BEAT", 0.02)
    lock = RunLock(run)
    os.utime(run / NAME, (0, 0))
    end = time.monotonic() + 20
    while (run / NAME).stat().st_mtime == 0:
        assert time.monotonic() < end
        time.sleep(0.02)
    lock.release()


@pytest.mark.parametrize("content", [b"", b"{}", b"x" * 9999, b'{"host": "\x1b[2J", "process": 1e999}', b"[" * 4000])
def test_damaged_locks(run: Path, data: Path, content: bytes) -> None:
    """An empty one is what a crash leaves; another one may be of a later version."""
    (run / NAME).write_bytes(content)
    if content:
        with pytest.raises(ConfigError, match="an unknown process, last seen 0 s ago, trains this run"):
            dslide.resume(run, data, epochs=2)
        os.utime(run / NAME, (0, 0))
    dslide.resume(run, data, epochs=2)


def _linked(path: Path) -> None:
    path.symlink_to(path.with_name("outside"))


@pytest.mark.parametrize("plant", [_linked, os.mkfifo, os.mkdir])
def test_what_is_no_lock_is_refused(run: Path, data: Path, plant: Callable[[Path], None]) -> None:
    plant(run / NAME)
    with pytest.raises(ConfigError, match=r"lock: is (a link, expected a file|not a regular file)"):
        dslide.resume(run, data, epochs=2)
    assert not (run / "outside").exists()
