"""Keeps a training run alive: starts its ranks, and starts them again from the last save, on the hosts that answer,
when some were lost. What goes wrong on the way is launch.py's to notice; here is decided what to do about it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from dslide.errors import BROKEN_PIPE, BUG, DIVERGED, INTERRUPTED, LOST, TERMINATED, USER_ERROR
from dslide.launch.events import Events
from dslide.launch.launcher import launch
from dslide.launch.mpiexec import Host
from dslide.launch.rank_table import Outcome
from dslide.launch.remote_shell import who_answers
from dslide.util.signals import handling


@dataclass(frozen=True)
class Patience:
    """How often and how long to try; times in seconds."""

    failures: int = 10  # in a row, none at a later step than all before, after which the run is given up
    strikes: int = 3  # failures that one host is to blame for, without progress in between, after which it is left out
    pause: float = 1.0  # before the first new start; doubled with each failure in a row,
    longest_pause: float = 60.0  # up to this
    answer: float = 20.0  # in which a host must answer
    enough_hosts: float = 3600.0  # to wait for them
    look: float = 30.0  # between looks for hosts that are missing, and before one that failed is taken back;
    longest_absence: float = 3600.0  # doubled each time it fails, up to this
    notice: float = 120.0  # for which a host that was told to end is not used, though it may still answer


PATIENCE = Patience()


class Supervisor:
    """Runs a command, one of `dslide train --elastic --out RUN`, as ranks on this machine or on hosts, to its end."""

    def __init__(
        self, command: Sequence[str], folder: Path, ranks: int, hosts: Sequence[Host], least: int, limit: float,
        patience: Patience = PATIENCE,
    ):  # fmt: skip
        self._command, self._ranks, self._least, self._limit = command, ranks, least, limit
        self._hosts, self._here = {host.name: host for host in hosts}, not hosts
        self._patience = patience
        self._events = Events(folder)
        self._furthest = 0  # the last step that was heard of
        self._failures = 0  # since there was progress
        self._strikes: Counter[str] = Counter()  # failures by host, since there was progress
        self._absences: Counter[str] = Counter()  # failures by host
        self._absent_until: dict[str, float] = {}  # when a host may be taken back while a job runs,
        self._noticed_until: dict[str, float] = {}  # and when one may be used at all
        self._silent: dict[str, str] = {}  # hosts that did not answer, and why

    def run(self) -> int:
        """The exit code, when training has come to its end, was interrupted, or is given up."""
        with _signals():
            try:
                while True:
                    hosts = self._wait_for_hosts()
                    if hosts is None:
                        return LOST
                    code = self._judge(*self._try(hosts))
                    if code is not None:
                        return code
            except KeyboardInterrupt:
                self._tell("interrupted", "interrupted")
                return INTERRUPTED

    def _try(self, hosts: list[Host]) -> tuple[Outcome, list[str]]:
        """Runs the job once; how it ended, and hosts for whose return it was asked to."""
        ranks = sum(host.ranks for host in hosts) or self._ranks
        names = [host.name for host in hosts]
        self._tell("start", f"starting {_ranks(ranks)}{' on ' * bool(names)}{', '.join(names)}", names)
        missing = [name for name in self._hosts if name not in names]
        back: list[str] = []
        over = threading.Event()
        look = threading.Thread(target=self._look_for, args=(missing, back, over), name="dslide-look", daemon=True)
        if missing:
            look.start()
        try:
            return launch(self._command, ranks, hosts, limit=self._limit, enough=lambda: bool(back)), back
        finally:
            over.set()

    def _look_for(self, missing: list[str], back: list[str], over: threading.Event) -> None:
        """The thread that asks hosts which are missing whether they are there again, until one is."""
        while not back and not over.wait(self._patience.look):
            now = time.monotonic()
            due = [name for name in self._usable(missing) if now >= self._absent_until.get(name, 0)]
            back += [name for name, fault in who_answers(due, self._patience.answer).items() if not fault]

    def _judge(self, outcome: Outcome, back: list[str]) -> int | None:
        """What an ended job means: the exit code if the run is over, None if it is to start again."""
        code, step = outcome.code, outcome.step
        progress = step > self._furthest
        self._furthest = max(step, self._furthest)
        if code == 0:
            self._tell("done", "training is done")
            return 0
        if code == INTERRUPTED and back and not outcome.by_user:
            self._tell("return", f"{', '.join(back)} back again; saved, and starting again with more ranks", back)
            return None
        mistake = code in (USER_ERROR, BUG) and self._furthest == 0
        if mistake or outcome.by_user or code in (DIVERGED, BROKEN_PIPE, INTERRUPTED):
            self._tell("ended", f"ended with code {code}, not to be tried again", outcome.hosts)
            return code
        reason = outcome.reason or f"exit code {code}"
        if code == TERMINATED:
            self._tell("notice", reason, outcome.hosts)
            self._noticed_until |= dict.fromkeys(outcome.hosts, time.monotonic() + self._patience.notice)
        else:
            self._tell("lost", reason, outcome.hosts)
            self._blame(outcome.hosts, progress)
        self._failures = 1 if progress else self._failures + 1
        if self._failures > self._patience.failures:
            self._tell("given-up", f"given up after {self._patience.failures} failures without progress")
            return code
        pause = min(self._patience.pause * 2 ** (self._failures - 1), self._patience.longest_pause)
        self._tell("pause", f"starting again in {pause:g} s")
        time.sleep(pause)
        return None

    def _blame(self, hosts: Sequence[str], progress: bool) -> None:
        """Notes whose fault it was; a host that fails again and again is left out from now on."""
        if progress:
            self._strikes.clear()
        for host in hosts:
            self._strikes[host] += 1
            self._absences[host] += 1
            absence = self._patience.look * 2 ** (self._absences[host] - 1)
            self._absent_until[host] = time.monotonic() + min(absence, self._patience.longest_absence)
            if self._strikes[host] == self._patience.strikes:
                self._tell("left-out", f"{host} failed {self._strikes[host]} times without progress; left out", [host])
                del self._hosts[host]

    def _usable(self, names: Sequence[str]) -> list[str]:
        """Those that were not told to end a moment ago."""
        now = time.monotonic()
        return [name for name in names if name in self._hosts and now >= self._noticed_until.get(name, 0)]

    def _wait_for_hosts(self) -> list[Host] | None:
        """Hosts that answer, once there are enough of them, none if all ranks are on this machine; None if there never
        will be, or not in time."""
        if self._here:
            return []
        end, pause = time.monotonic() + self._patience.enough_hosts, self._patience.pause
        while sum(host.ranks for host in self._hosts.values()) >= self._least:
            answers = who_answers(self._usable(list(self._hosts)), self._patience.answer)
            self._note_silence({name: fault for name, fault in answers.items() if fault})
            found = [self._hosts[name] for name, fault in answers.items() if not fault]
            ranks = sum(host.ranks for host in found)
            if ranks >= self._least:
                return found
            if time.monotonic() > end:
                break
            if pause == self._patience.pause:
                self._tell("wait", f"{_ranks(ranks)} could be started, fewer than {self._least}; waiting for hosts")
            time.sleep(pause)
            pause = min(2 * pause, self._patience.longest_pause)
        self._tell("given-up", f"given up: there are no hosts for {_ranks(self._least)}")
        return None

    def _note_silence(self, silent: dict[str, str]) -> None:
        """Tells of hosts that don't answer, once."""
        for name in silent.keys() - self._silent.keys():
            self._tell("no-answer", f"{name} does not answer: {silent[name]}", [name])
        self._silent = silent

    def _tell(self, kind: str, text: str, hosts: Sequence[str] = ()) -> None:
        self._events.tell(kind, text, hosts, self._furthest)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """What asks for an end while no job runs, which would handle it, is Ctrl-C."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handling((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield
