"""Disturbs a run with --elastic for as long as it takes: ranks and the supervisor are killed, stopped, told to end and
starved, at random moments. Prints what that cost, beside the same run undisturbed; writes report.md and report.json.

    python -m bench.soak [--minutes 30] [--ranks 4] [--seed 0] [--no-reference] [--out build/soak]

Minutes are those of the undisturbed run; the disturbed one takes longer. The exit code is 1 if the run did not come to
its end, steps were lost, or processes were left.
"""

from __future__ import annotations

import argparse
import json
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

from dslide.comm.mpi import launched_as
from dslide.model_files import MANIFEST, UNFINISHED

from . import machine
from .measuring import to_end
from .soak_figures import Fault, Record, Soak, read_records, recoveries
from .workload import Shape, make_data

SHAPE = Shape(rows=30_000, features=20_000, labels=30_000)
SAVED_EVERY, WATCHDOG = 10, 5  # seconds
OPTIONS = ["--hidden", "128", "--batch-size", "256", "--threads", "1", "--quiet"]
OPTIONS += ["--checkpoint-seconds", str(SAVED_EVERY), "--watchdog", str(WATCHDOG), "--elastic"]
TRIAL_EPOCHS = 3  # which tell how many make the minutes asked for
APART = (20.0, 60.0)  # seconds between a recovery and the next fault
RECOVERED = 150.0  # seconds in which training is to go on after a fault
STARVED = 30.0  # seconds after which limits are taken away again from a rank that lives with them
LOOK, QUICK_LOOK = 0.2, 0.002  # seconds between looks at the run
SMALL_FILES = 1_000_000  # bytes: logs can be written, arrays of a checkpoint can't
MARK = "DSLIDE_SOAK"  # variable that every process of a run has
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TOP_PAD_": "0"}  # each array is asked of the system anew


class Run:
    """A run with --elastic in a folder; `start` gives the same command again."""

    def __init__(self, folder: Path, data: Path, ranks: int, epochs: int):
        self.folder, self.ranks = folder, ranks
        words = [data / "train.txt", "--test", data / "test.txt", "--out", folder, "--ranks", ranks, "--epochs", epochs]
        self._command = [sys.executable, "-m", "dslide.cli", "train", *map(str, words), *OPTIONS]
        self._said = folder.with_suffix(".txt")
        for path in (folder, self._said):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self._begin = time.monotonic()
        self.start()

    def start(self) -> None:
        with open(self._said, "ab") as said:
            self.process = subprocess.Popen(
                self._command, stdout=said, stderr=said, env={**os.environ, **ALLOCATION, MARK: str(self.folder)}
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def log(self, rank: int = 0) -> list[Record]:
        return read_records(self.folder / (f"log-{rank}.jsonl" if rank else "log.jsonl"))

    def last_start(self, rank: int = 0) -> Record:
        """The newest record of a rank that begins to train."""
        starts = [record for record in self.log(rank) if record["record"] == "start"]
        return starts[-1] if starts else {"time": 0.0, "process": 0, "total_steps": 0}

    def trains_since(self, when: float) -> bool:
        """Whether all ranks have started after this time, and the first one made a step."""
        stepped = any(record["record"] != "start" for record in self.log()[-1:])
        return stepped and all(self.last_start(rank)["time"] > when for rank in range(self.ranks))

    def unharmed(self) -> bool:
        """Whether all ranks that have last begun to train are there, and steps are being made."""
        processes = [self.last_start(rank)["process"] for rank in range(self.ranks)]
        steps = self.log()[-1]["time"] > time.time() - WATCHDOG  # told once a second
        return steps and all(Path(f"/proc/{process}").exists() for process in processes)

    def rank_process(self, chance: random.Random) -> int:
        """One of the ranks that train."""
        return int(self.last_start(chance.randrange(self.ranks))["process"])

    def processes(self) -> dict[int, dict[str, str]]:
        """Environments of all that is left of the run, the supervisor's included."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit():
                    words = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                    variables = dict(word.split("=", 1) for word in words if "=" in word)
                    if variables.get(MARK) == str(self.folder):
                        found[int(entry.name)] = variables
        return found

    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def summary(self) -> dict[str, Any]:
        """What came of it, when it has ended."""
        found: dict[str, Any] = {"exit_code": self.process.returncode}
        found["wall_minutes"] = (time.monotonic() - self._begin) / 60
        path = self.folder / "summary.json"
        return found | (json.loads(path.read_text()) if self.process.returncode == 0 and path.exists() else {})


def wait_for(condition: Callable[[], bool], seconds: float, every: float = LOOK) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < end:
        time.sleep(every)
    return true


# ---- faults: each does something to a run that trains, and returns when --------------------------------------------


Disturb = Callable[[Run, random.Random], float]


def kill(process: int, number: signal.Signals = signal.SIGKILL) -> float:
    os.kill(process, number)
    return time.time()


def send(number: signal.Signals) -> Disturb:
    def fault(run: Run, chance: random.Random) -> float:
        return kill(run.rank_process(chance), number)

    return fault


def kill_while_saving(run: Run, chance: random.Random) -> float:
    checkpoints = run.folder / "checkpoints"
    wait_for(lambda: run.ended or any(checkpoints.glob(f"*/*{UNFINISHED}")), 4 * SAVED_EVERY, QUICK_LOOK)
    return kill(run.rank_process(chance))


def kill_at_start(run: Run, chance: random.Random) -> float:
    """A rank is killed, and one of those started in its place before they train."""
    before = set(run.processes())
    when = kill(run.rank_process(chance))
    fresh: list[int] = []

    def begun() -> bool:
        fresh[:] = [pid for pid, its in run.processes().items() if pid not in before and launched_as(its)[1] > 1]
        return run.ended or len(fresh) == run.ranks

    if wait_for(begun, 60, QUICK_LOOK) and fresh:
        time.sleep(chance.uniform(0, 2))  # in which they import, meet, read data
        when = kill(chance.choice(fresh))
    return when


def limited(kind: int, most: int) -> Disturb:
    """A limit on a rank, as long as it lives with it."""

    def fault(run: Run, chance: random.Random) -> float:
        rank, begin = run.rank_process(chance), time.time()
        limits = resource.prlimit(rank, kind)
        resource.prlimit(rank, kind, (most, limits[1]))
        if not wait_for(lambda: run.ended or run.trains_since(begin), STARVED):
            with suppress(ProcessLookupError):
                resource.prlimit(rank, kind, limits)
        return begin

    return fault


def kill_supervisor(run: Run, _chance: random.Random) -> float:
    when = kill(run.process.pid)
    run.process.wait()
    run.start()
    return when


def interrupt_supervisor(run: Run, _chance: random.Random) -> float:
    when = kill(run.process.pid, signal.SIGINT)
    if run.process.wait(RECOVERED) != 0:
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
    "rank told to end": send(signal.SIGTERM),
    "supervisor killed": kill_supervisor,
    "supervisor interrupted": interrupt_supervisor,
}


def kinds(chance: random.Random) -> Iterator[str]:
    """Each once in random order, again and again."""
    while True:
        yield from chance.sample(list(FAULTS), len(FAULTS))


# ---- runs ------------------------------------------------------------------------------------------------------------


def tell(text: str) -> None:
    print(f"soak: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@contextmanager
def begun(folder: Path, data: Path, ranks: int, epochs: int) -> Iterator[Run]:
    """A run, of which nothing is left afterwards."""
    run = Run(folder, data, ranks, epochs)
    try:
        yield run
    finally:
        for process in run.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        run.process.wait()


def settled(run: Run, fault: Fault) -> bool:
    """Whether training goes on after a fault, or never stopped."""
    return run.trains_since(fault.time) or (fault.kind in LIMITS and run.unharmed())


def disturb(run: Run, chance: random.Random, limit: float) -> list[Fault]:
    """Fault after fault until the run ends, or for so many seconds."""
    faults: list[Fault] = []
    end = time.monotonic() + limit
    wait_for(lambda: run.ended or run.trains_since(0), RECOVERED)
    for kind in kinds(chance):
        if wait_for(lambda: run.ended, min(chance.uniform(*APART), end - time.monotonic())) or time.monotonic() > end:
            break
        tell(f"{kind}, at step {run.log()[-1]['step']:,}")
        with suppress(ProcessLookupError):  # the run came to its end
            faults.append(Fault(kind, FAULTS[kind](run, chance)))
            wait_for(lambda: run.ended or settled(run, faults[-1]), RECOVERED)
    return faults


def undisturbed(folder: Path, data: Path, ranks: int, epochs: int) -> tuple[dict[str, Any], list[Record]]:
    """Its summary and log."""
    with begun(folder, data, ranks, epochs) as run:
        if run.process.wait() != 0:
            raise SystemExit(f"a run without faults failed: {run.said()}")
        return run.summary(), run.log()


def soak(out: Path, ranks: int, seed: int, minutes: float, reference: bool) -> int:
    out = out.resolve()
    data = make_data(out / "data", SHAPE)
    _, log = undisturbed(out / "trial", data, ranks, TRIAL_EPOCHS)
    speed = [record["samples_per_second"] for record in log if record["record"] == "epoch"][-1]
    epochs = max(1, round(minutes * 60 * speed / SHAPE.rows))
    tell(f"{speed:,.0f} samples/s: {epochs} epochs")
    with begun(out / "disturbed", data, ranks, epochs) as run:
        faults = disturb(run, random.Random(seed), limit=600 + 4 * 60 * minutes)
        wait_for(lambda: not run.processes(), 15)
        left = [" ".join(map(str, (pid, launched_as(its)))) for pid, its in run.processes().items()]
        disturbed, total = run.summary(), run.last_start()["total_steps"]
    known = recoveries(faults, run.log())
    folders = list((run.folder / "checkpoints").glob("step-*"))
    incomplete = sum(not (folder / MANIFEST).exists() for folder in folders)
    other = undisturbed(out / "undisturbed", data, ranks, epochs)[0] if reference else None
    found = Soak(faults, known, total, disturbed, other, left, incomplete, run.said().count("Traceback"))
    about = (
        f"{ranks} ranks, {SHAPE.labels:,} labels, {epochs} epochs, seed {seed}; a checkpoint every {SAVED_EVERY} s, "
    )
    about += f"--watchdog {WATCHDOG}, {APART[0]:g} to {APART[1]:g} s between a recovery and the next fault. What ranks "
    about += "and supervisor said is in disturbed.txt."
    report = found.markdown(about)
    (out / "report.md").write_text(report)
    details = {"about": about, "machine": machine.facts(), **found.as_json()}
    (out / "report.json").write_text(json.dumps(details, indent=1) + "\n")
    print(report)
    return int(found.failed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="that it would take undisturbed (default: 30)")
    parser.add_argument("--ranks", type=int, default=4, help="ranks, all on this machine (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults (default: 0)")
    parser.add_argument("--no-reference", action="store_true", help="leave out the undisturbed run")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder for data, runs and report")
    options = parser.parse_args()
    if options.ranks < 2 or options.minutes <= 0:
        parser.error("expected at least 2 ranks, and a number of minutes above 0")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and theirs, are deaf to it
    return soak(options.out, options.ranks, options.seed, options.minutes, not options.no_reference)


if __name__ == "__main__":
    to_end(main)
