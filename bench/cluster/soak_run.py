"""A run with --elastic that a soak disturbs: on one machine with a small /dev/shm of its own, or on the nodes of an
emulated cluster."""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.lib.commands import Record, read_records, read_summary
from dslide import netlab

CHECKPOINT_SECONDS, WATCHDOG = 3, 3
OPTIONS = ["--hidden", "64", "--batch-size", "256", "--threads", "1", "--quiet", "--validation", "0"]
OPTIONS += ["--checkpoint-seconds", str(CHECKPOINT_SECONDS), "--watchdog", str(WATCHDOG)]
RECOVERY_SECONDS = 150.0  # in which training is to resume after a fault
POLL = 0.1  # seconds between checks of the run
RUN_VARIABLE, CLOCK_VARIABLE = "DSLIDE_SOAK", "DSLIDE_SOAK_CLOCK"  # the first is in every process of a run
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TOP_PAD_": "0"}  # every array is a system call
_OWN_MEMORY = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'


class ElasticRun:
    """A run in a folder, of so many ranks on this machine, or one on each node of a lab; `start` runs the same command
    again, as long as it is needed."""

    def __init__(self, folder: Path, data: Path, ranks: int, epochs: int, lab: str | None, clock: Path) -> None:
        self.folder, self.ranks, self.lab = folder, ranks, lab
        self._output, self._clock, self._shift = folder.with_suffix(".txt"), clock, folder.with_suffix(".clock")
        words = [data / "train.txt", "--test", data / "test.txt", "--out", folder, "--epochs", epochs, *OPTIONS]
        command = [sys.executable, "-m", "dslide.cli", "train", "--elastic", *map(str, words)]
        if lab is None:
            own = ["unshare", "--mount", "sh", "-c", _OWN_MEMORY, "sh"]
            self._command = [*own, *command, "--ranks", str(ranks)]
        else:
            hosts = folder.with_suffix(".hosts")
            hosts.write_text("\n".join(netlab.find(lab).hosts) + "\n")
            self._command = netlab.supervise([*command, "--hosts", str(hosts)], lab)

    def clear(self) -> None:
        """Removes what an earlier run has left."""
        for path in (self.folder, self._output):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def start(self) -> None:
        self.shift_clock(0, 0)
        library = {"LD_PRELOAD": str(self._clock), CLOCK_VARIABLE: str(self._shift)}
        environment = {**os.environ, **ALLOCATION, **library, RUN_VARIABLE: str(self.folder)}
        with open(self._output, "ab") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=output, env=environment)

    def shift_clock(self, process: int, seconds: int) -> None:
        """Shifts the wall clock of one process, and of no other."""
        with open(self._shift, "r+b" if self._shift.exists() else "wb") as file:
            file.write(struct.pack("qq", process, seconds))

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def log(self, rank: int = 0) -> list[Record]:
        return read_records(self.folder / (f"log-{rank}.jsonl" if rank else "log.jsonl"))

    def last_start(self, rank: int = 0) -> Record:
        """The newest start record of a rank."""
        starts = [record for record in self.log(rank) if record["record"] == "start"]
        return starts[-1] if starts else {"time": 0.0, "process": 0, "total_steps": 0, "ranks": 0}

    def trains_since(self, when: float) -> bool:
        """Whether ranks have started after this time, and made a step, which takes all of them."""
        last = self.log()[-1:]
        return bool(last) and last[0]["record"] != "start" and self.last_start()["time"] > when

    def steps_since(self, when: float) -> bool:
        """Whether a step was logged after this time; one is about every second."""
        last = self.log()[-1:]
        return bool(last) and last[0]["record"] != "start" and last[0]["time"] > when

    def rank_process(self, chance: random.Random, first: int = 0) -> int:
        """The process of a random rank, or of one from `first` on."""
        return int(self.last_start(chance.randrange(first, max(first + 1, self.last_start()["ranks"])))["process"])

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

    def kill_all(self) -> None:
        """Kills what is left of it."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    def interrupt(self) -> bool:
        """Ctrl-C; False if it did not end in time."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(RECOVERY_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def summary(self) -> dict[str, Any]:
        """Its exit code, and its summary if it has finished."""
        finished = self.process.returncode == 0 and (self.folder / "summary.json").exists()
        return {"exit_code": self.process.returncode, **(read_summary(self.folder) if finished else {})}


def wait_for(condition: Callable[[], bool], seconds: float, every: float = POLL) -> bool:
    """Whether the condition became true in time."""
    end = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < end:
        time.sleep(every)
    return true
