"""Injects faults into a run with --elastic until it ends: ranks and the supervisor are killed, stopped, terminated and
limited at random times. Reports the cost beside the same run without faults; report.md and report.json.

    python -m bench.cluster.soak [--minutes 30] [--ranks 4] [--seed 0] [--no-reference] [--out build/soak]

Minutes are those of the run without faults; the other one takes longer. The exit code is 1 if the run did not finish,
steps were lost, or processes remained.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.cluster.soak_report import Fault, Soak, recoveries
from bench.lib.commands import Record, read_records, read_summary
from bench.lib.machine import facts
from bench.lib.measuring import log, run_command, write_report
from bench.lib.workload import Shape, make_data
from dslide.checkpoint.manifest import MANIFEST
from dslide.comm.mpi import launched_as

SHAPE = Shape(rows=30_000, features=20_000, labels=30_000)
CHECKPOINT_SECONDS, WATCHDOG = 10, 5
OPTIONS = ["--hidden", "128", "--batch-size", "256", "--threads", "1", "--quiet"]
OPTIONS += ["--checkpoint-seconds", str(CHECKPOINT_SECONDS), "--watchdog", str(WATCHDOG), "--elastic"]
TRIAL_EPOCHS = 3  # to measure the speed, from which epochs are computed
PAUSE = (20.0, 60.0)  # seconds between a recovery and the next fault
RECOVERY_SECONDS = 150.0  # in which training is to resume after a fault
LIMITED_SECONDS = 30.0  # after which limits are removed from a rank that survives them
POLL, FAST_POLL = 0.2, 0.002  # seconds between checks of the run
SMALL_FILES = 1_000_000  # bytes: logs can be written, arrays of a checkpoint can't
RUN_VARIABLE = "DSLIDE_SOAK"  # in the environment of every process of a run
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TOP_PAD_": "0"}  # every array is a system call


class ElasticRun:
    """A run with --elastic in a folder; `start` runs the same command again."""

    def __init__(self, folder: Path, data: Path, ranks: int, epochs: int):
        self.folder, self.ranks = folder, ranks
        words = [data / "train.txt", "--test", data / "test.txt", "--out", folder, "--ranks", ranks, "--epochs", epochs]
        self._command = [sys.executable, "-m", "dslide.cli", "train", *map(str, words), *OPTIONS]
        self._output = folder.with_suffix(".txt")
        for path in (folder, self._output):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self._begin = time.monotonic()
        self.start()

    def start(self) -> None:
        environment = {**os.environ, **ALLOCATION, RUN_VARIABLE: str(self.folder)}
        with open(self._output, "ab") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=output, env=environment)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def log(self, rank: int = 0) -> list[Record]:
        return read_records(self.folder / (f"log-{rank}.jsonl" if rank else "log.jsonl"))

    def last_start(self, rank: int = 0) -> Record:
        """The newest start record of a rank."""
        starts = [record for record in self.log(rank) if record["record"] == "start"]
        return starts[-1] if starts else {"time": 0.0, "process": 0, "total_steps": 0}

    def trains_since(self, when: float) -> bool:
        """Whether all ranks have started after this time, and rank 0 has made a step."""
        stepped = any(record["record"] != "start" for record in self.log()[-1:])
        return stepped and all(self.last_start(rank)["time"] > when for rank in range(self.ranks))

    def unharmed(self) -> bool:
        """Whether the processes of all ranks exist, and steps are made."""
        processes = [self.last_start(rank)["process"] for rank in range(self.ranks)]
        steps = self.log()[-1]["time"] > time.time() - WATCHDOG  # logged once a second
        return steps and all(Path(f"/proc/{process}").exists() for process in processes)

    def rank_process(self, chance: random.Random) -> int:
        """The process of a random rank."""
        return int(self.last_start(chance.randrange(self.ranks))["process"])

    def processes(self) -> dict[int, dict[str, str]]:
        """Environments of all processes of the run, the supervisor's included."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit():
                    words = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                    variables = dict(word.split("=", 1) for word in words if "=" in word)
                    if variables.get(RUN_VARIABLE) == str(self.folder):
                        found[int(entry.name)] = variables
        return found

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def summary(self) -> dict[str, Any]:
        """Its summary, exit code and minutes, after it has ended."""
        found: dict[str, Any] = {"exit_code": self.process.returncode}
        found["wall_minutes"] = (time.monotonic() - self._begin) / 60
        finished = self.process.returncode == 0 and (self.folder / "summary.json").exists()
        return found | (read_summary(self.folder) if finished else {})


def wait_for(condition: Callable[[], bool], seconds: float, every: float = POLL) -> bool:
    """Whether the condition became true in time."""
    end = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < end:
        time.sleep(every)
    return true


# ---- faults: each returns the time at which it was injected ----------------------------------------------------------


Inject = Callable[[ElasticRun, random.Random], float]


def kill(process: int, number: signal.Signals = signal.SIGKILL) -> float:
    os.kill(process, number)
    return time.time()


def send(number: signal.Signals) -> Inject:
    def fault(run: ElasticRun, chance: random.Random) -> float:
        return kill(run.rank_process(chance), number)

    return fault


def kill_while_saving(run: ElasticRun, chance: random.Random) -> float:
    checkpoints = run.folder / "checkpoints"
    wait_for(lambda: run.ended or any(checkpoints.glob("*/.*.partial")), 4 * CHECKPOINT_SECONDS, FAST_POLL)
    return kill(run.rank_process(chance))


def kill_at_start(run: ElasticRun, chance: random.Random) -> float:
    """Kills a rank, and then one of those started in its place before they train."""
    before = set(run.processes())
    when = kill(run.rank_process(chance))
    fresh: list[int] = []

    def ranks_started() -> bool:
        fresh[:] = [pid for pid, its in run.processes().items() if pid not in before and launched_as(its)[1] > 1]
        return run.ended or len(fresh) == run.ranks

    if wait_for(ranks_started, 60, FAST_POLL) and fresh:
        time.sleep(chance.uniform(0, 2))  # imports, rendezvous, reading data
        when = kill(chance.choice(fresh))
    return when


def limited(kind: int, most: int) -> Inject:
    """Sets a limit on a rank, and removes it if the rank survives."""

    def fault(run: ElasticRun, chance: random.Random) -> float:
        rank, begin = run.rank_process(chance), time.time()
        limits = resource.prlimit(rank, kind)
        resource.prlimit(rank, kind, (most, limits[1]))
        if not wait_for(lambda: run.ended or run.trains_since(begin), LIMITED_SECONDS):
            with suppress(ProcessLookupError):
                resource.prlimit(rank, kind, limits)
        return begin

    return fault


def kill_supervisor(run: ElasticRun, _chance: random.Random) -> float:
    when = kill(run.process.pid)
    run.process.wait()
    run.start()
    return when


def interrupt_supervisor(run: ElasticRun, _chance: random.Random) -> float:
    when = kill(run.process.pid, signal.SIGINT)
    if run.process.wait(RECOVERY_SECONDS) != 0:
        run.start()
    return when


LIMITS = {
    "disk full": limited(resource.RLIMIT_FSIZE, 1000),
    "disk full for arrays": limited(resource.RLIMIT_FSIZE, SMALL_FILES),
    "out of memory": limited(resource.RLIMIT_AS, 0),
}
FAULTS = LIMITS | {
    "rank killed": send(signal.SIGKILL),
    "rank killed, another at start-up": kill_at_start,
    "rank killed while saving": kill_while_saving,
    "rank stopped": send(signal.SIGSTOP),
    "rank terminated": send(signal.SIGTERM),
    "supervisor killed": kill_supervisor,
    "supervisor interrupted": interrupt_supervisor,
}


def kinds(chance: random.Random) -> Iterator[str]:
    """All kinds in random order, again and again."""
    while True:
        yield from chance.sample(list(FAULTS), len(FAULTS))


# ---- runs ------------------------------------------------------------------------------------------------------------


@contextmanager
def started(folder: Path, data: Path, ranks: int, epochs: int) -> Iterator[ElasticRun]:
    """A run whose processes are killed at the end."""
    run = ElasticRun(folder, data, ranks, epochs)
    try:
        yield run
    finally:
        for process in run.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        run.process.wait()


def settled(run: ElasticRun, fault: Fault) -> bool:
    """Whether training has resumed after a fault, or never stopped."""
    return run.trains_since(fault.time) or (fault.kind in LIMITS and run.unharmed())


def inject_faults(run: ElasticRun, chance: random.Random, limit: float) -> list[Fault]:
    """Injects faults until the run ends, or for so many seconds."""
    faults: list[Fault] = []
    end = time.monotonic() + limit
    wait_for(lambda: run.ended or run.trains_since(0), RECOVERY_SECONDS)
    for kind in kinds(chance):
        if wait_for(lambda: run.ended, min(chance.uniform(*PAUSE), end - time.monotonic())) or time.monotonic() > end:
            break
        log(f"{time.strftime('%H:%M:%S')} {kind}, at step {run.log()[-1]['step']:,}")
        with suppress(ProcessLookupError):  # the run has ended
            faults.append(Fault(kind, FAULTS[kind](run, chance)))
            wait_for(lambda: run.ended or settled(run, faults[-1]), RECOVERY_SECONDS)
    return faults


def without_faults(folder: Path, data: Path, ranks: int, epochs: int) -> tuple[dict[str, Any], list[Record]]:
    """Summary and log of a run without faults."""
    with started(folder, data, ranks, epochs) as run:
        if run.process.wait() != 0:
            raise SystemExit(f"a run without faults failed: {run.output()}")
        return run.summary(), run.log()


def soak(out: Path, ranks: int, seed: int, minutes: float, reference: bool) -> int:
    out = out.resolve()
    data = make_data(out / "data", SHAPE)
    _, records = without_faults(out / "trial", data, ranks, TRIAL_EPOCHS)
    speed = [record["samples_per_second"] for record in records if record["record"] == "epoch"][-1]
    epochs = max(1, round(minutes * 60 * speed / SHAPE.rows))
    log(f"{speed:,.0f} samples/s: {epochs} epochs")
    with started(out / "faults", data, ranks, epochs) as run:
        faults = inject_faults(run, random.Random(seed), limit=600 + 4 * 60 * minutes)
        wait_for(lambda: not run.processes(), 15)
        remaining = [" ".join(map(str, (pid, launched_as(its)))) for pid, its in run.processes().items()]
        summary, total = run.summary(), run.last_start()["total_steps"]
    known = recoveries(faults, run.log())
    folders = list((run.folder / "checkpoints").glob("step-*"))
    incomplete = sum(not (folder / MANIFEST).exists() for folder in folders)
    other = without_faults(out / "reference", data, ranks, epochs)[0] if reference else None
    found = Soak(faults, known, total, summary, other, remaining, incomplete, run.output().count("Traceback"))
    about = (
        f"{ranks} ranks, {SHAPE.labels:,} labels, {epochs} epochs, seed {seed}; a checkpoint every "
        f"{CHECKPOINT_SECONDS} s, --watchdog {WATCHDOG}, {PAUSE[0]:g} to {PAUSE[1]:g} s between a recovery and the "
        "next fault. The output of ranks and supervisor is in faults.txt."
    )
    write_report(out, found.markdown(about), {"about": about, "machine": facts(), **found.as_json()})
    return int(found.failed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="minutes of the run without faults (default: 30)")
    parser.add_argument("--ranks", type=int, default=4, help="ranks, all on this machine (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults (default: 0)")
    parser.add_argument("--no-reference", action="store_true", help="leave out the run without faults")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder for data, runs and report")
    options = parser.parse_args()
    if options.ranks < 2 or options.minutes <= 0:
        parser.error("expected at least 2 ranks, and a number of minutes above 0")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    return soak(options.out, options.ranks, options.seed, options.minutes, not options.no_reference)


if __name__ == "__main__":
    run_command(main)
