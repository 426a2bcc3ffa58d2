"""Elastic runs: starts the ranks of a training run, and starts them again from the last checkpoint, on the hosts that
answer, when some were lost. The launcher detects failures; the supervisor here decides what to do about them, and
records it: each event is a line on stderr, and one in RUN/events.jsonl."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dslide.comm.liveness import RetryPolicy
from dslide.errors import BROKEN_PIPE, BUG, DIVERGED, INTERRUPTED, LOST, TERMINATED, USER_ERROR, CommError
from dslide.launch.launcher import launch
from dslide.launch.mpiexec import Host
from dslide.launch.rank_table import Outcome
from dslide.launch.remote_shell import who_answers
from dslide.util.plain import open_to_append
from dslide.util.signals import handling
from dslide.util.units import counted


class Supervisor:
    """Runs a command, one like `dslide train --elastic --out RUN`, as ranks on this machine or on hosts, to its end. At
    least `least` ranks are started; `limit` is the silence limit in seconds."""

    def __init__(
        self, command: Sequence[str], folder: Path, ranks: int, hosts: Sequence[Host], least: int, limit: float,
        policy: RetryPolicy | None = None,
    ):  # fmt: skip
        self._command, self._ranks, self._least, self._limit = command, ranks, least, limit
        self._hosts, self._here = {host.name: host for host in hosts}, not hosts
        self._policy = policy or RetryPolicy()
        self._folder, self._begin = folder, time.monotonic()
        self._held: list[str] = []  # records not yet in the folder
        self._last_step = 0  # that was reported
        self._failures = 0  # since there was progress
        self._recent_failures: Counter[str] = Counter()  # by host, since there was progress
        self._all_failures: Counter[str] = Counter()  # by host
        self._absent_until: dict[str, float] = {}  # when a running job may be restarted to use a host again,
        self._noticed_until: dict[str, float] = {}  # and when a host that got SIGTERM may be used at all
        self._silent: dict[str, str] = {}  # hosts that did not answer, and why

    def run(self) -> int:
        """Runs until training is done, interrupted or given up; the exit code."""
        # Like Ctrl-C, while no job runs that would handle them.
        with handling((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler):
            try:
                while (hosts := self._wait_for_hosts()) is not None:
                    code = self._decide(*self._run_job(hosts))
                    if code is not None:
                        return code
                return LOST
            except KeyboardInterrupt:
                self._record("interrupted", "interrupted")
                return INTERRUPTED

    def _run_job(self, hosts: list[Host]) -> tuple[Outcome, list[str]]:
        """Runs the job once; how it ended, and the hosts that came back, for which it was interrupted."""
        ranks = sum(host.ranks for host in hosts) or self._ranks
        names = [host.name for host in hosts]
        self._record("start", f"starting {counted(ranks, 'rank')}{' on ' * bool(names)}{', '.join(names)}", names)
        missing = [name for name in self._hosts if name not in names]
        back: list[str] = []
        over = threading.Event()
        try:
            if missing:
                probe = threading.Thread(
                    target=self._probe, args=(missing, back, over), name="dslide-probe", daemon=True
                )
                probe.start()
            return launch(self._command, ranks, hosts, limit=self._limit, enough=lambda: bool(back)), back
        except (CommError, RuntimeError) as error:  # like too many open files; RuntimeError: no thread can be started
            return Outcome(LOST, str(error)), back
        finally:
            over.set()

    def _probe(self, missing: list[str], back: list[str], over: threading.Event) -> None:
        """The thread that probes missing hosts until one of them answers."""
        while not back and not over.wait(self._policy.probe):
            now = time.monotonic()
            due = [name for name in self._usable(missing) if now >= self._absent_until.get(name, 0)]
            back += [name for name, fault in who_answers(due, self._policy.answer).items() if not fault]

    def _decide(self, outcome: Outcome, back: list[str]) -> int | None:
        """What follows from the end of a job: the exit code if the run is over, None if it is to be started again."""
        code, step = outcome.code, outcome.step
        progress = step > self._last_step
        self._last_step = max(step, self._last_step)
        if code == 0:
            self._record("done", "training is done")
            return 0
        if code == INTERRUPTED and back and not outcome.by_user:
            self._record("return", f"{', '.join(back)} answers again; saved, and restarting with more ranks", back)
            return None
        mistake = code in (USER_ERROR, BUG) and self._last_step == 0
        if mistake or outcome.by_user or code in (DIVERGED, BROKEN_PIPE, INTERRUPTED):
            self._record("ended", f"exited with code {code}; not restarted", outcome.hosts)
            return code
        reason = outcome.reason or f"exit code {code}"
        if code == TERMINATED:
            self._record("notice", reason, outcome.hosts)
            self._noticed_until |= dict.fromkeys(outcome.hosts, time.monotonic() + self._policy.notice)
        else:
            self._record("lost", reason, outcome.hosts)
            self._blame(outcome.hosts, progress)
        self._failures = 1 if progress else self._failures + 1
        if self._failures > self._policy.failures:
            self._record("given-up", f"given up after {self._policy.failures} failures without progress")
            return code
        pause = min(self._policy.pause * 2 ** (self._failures - 1), self._policy.longest_pause)
        self._record("pause", f"restarting in {pause:g} s")
        time.sleep(pause)
        return None

    def _blame(self, hosts: Sequence[str], progress: bool) -> None:
        """Notes which hosts caused a failure; one that fails repeatedly is left out from now on."""
        if progress:
            self._recent_failures.clear()
        for host in hosts:
            self._recent_failures[host] += 1
            self._all_failures[host] += 1
            absence = self._policy.probe * 2 ** (self._all_failures[host] - 1)
            self._absent_until[host] = time.monotonic() + min(absence, self._policy.longest_absence)
            if (count := self._recent_failures[host]) == self._policy.host_failures:
                self._record("left-out", f"{host} failed {count} times without progress; left out", [host])
                del self._hosts[host]

    def _usable(self, names: Sequence[str]) -> list[str]:
        """Those that did not get SIGTERM a moment ago."""
        now = time.monotonic()
        return [name for name in names if name in self._hosts and now >= self._noticed_until.get(name, 0)]

    def _wait_for_hosts(self) -> list[Host] | None:
        """The hosts that answer, once they are enough; none if all ranks are on this machine; None if given up."""
        if self._here:
            return []
        end, pause = time.monotonic() + self._policy.enough_hosts, self._policy.pause
        while sum(host.ranks for host in self._hosts.values()) >= self._least:
            answers = who_answers(self._usable(list(self._hosts)), self._policy.answer)
            silent = {name: fault for name, fault in answers.items() if fault}
            for name in silent.keys() - self._silent.keys():
                self._record("no-answer", f"{name} does not answer: {silent[name]}", [name])
            self._silent = silent
            found = [self._hosts[name] for name, fault in answers.items() if not fault]
            ranks = sum(host.ranks for host in found)
            if ranks >= self._least:
                return found
            if time.monotonic() > end:
                break
            if pause == self._policy.pause:
                text = f"{counted(ranks, 'rank')} could be started, fewer than {self._least}; waiting for hosts"
                self._record("wait", text)
            time.sleep(pause)
            pause = min(2 * pause, self._policy.longest_pause)
        self._record("given-up", f"given up: there are no hosts for {counted(self._least, 'rank')}")
        return None

    def _record(self, kind: str, text: str, hosts: Sequence[str] = ()) -> None:
        """Prints an event at once. Its record is held until the run's folder exists, or training has begun: a command
        with a mistake must not leave a folder behind."""
        now, seconds = time.time(), round(time.monotonic() - self._begin, 3)
        print(f"dslide: elastic: {time.strftime('%H:%M:%S', time.localtime(now))} {text}", file=sys.stderr, flush=True)
        record = {"event": kind, "time": round(now, 3), "seconds": seconds, "hosts": list(hosts)}
        self._held.append(json.dumps(record | {"step": self._last_step, "text": text}) + "\n")
        with contextlib.suppress(OSError):  # a full disk must not end the run; the next event tries again
            if self._last_step > 0:
                self._folder.mkdir(parents=True, exist_ok=True)
            if self._folder.is_dir():
                with open_to_append(self._folder / "events.jsonl", OSError) as file:
                    file.write("".join(self._held).encode())
                self._held.clear()
