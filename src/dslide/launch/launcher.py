"""The launcher: starts the ranks of a job, passes on what they print, forwards Ctrl-C, and says how the job ended.

Ranks connect to this process (rank_client.py), so that only the start depends on agents (agent.py) or mpiexec. What
these and ssh print is held back, as is what native code prints: it is shown only if no rank has reported why the job
failed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType

from dslide.comm import liveness
from dslide.errors import DIVERGED, INTERRUPTED, LOST, TERMINATED, USER_ERROR, CommError
from dslide.launch.mpiexec import Host
from dslide.launch.output import without_banners
from dslide.launch.processes import Process, started
from dslide.launch.protocol import HEARTBEAT, INTERRUPT
from dslide.launch.rank_table import UNKNOWN, Outcome, RankTable
from dslide.launch.rendezvous import RankConnections
from dslide.util.signals import handling
from dslide.util.terminal import columns_variable


def launch(
    command: Sequence[str], ranks: int, hosts: Sequence[Host] = (), *, start_limit: float = liveness.START,
    limit: float = liveness.SILENCE_LIMIT, stdin: bool = False, enough: Callable[[], bool] = lambda: False,
) -> Outcome:  # fmt: skip
    """Runs a command as several ranks, here or on hosts, until all have exited: a `dslide` command, or a program that
    runs its work through `dslide.launch.exit.run_to_end`. `limit` is the silence limit in seconds; with `stdin`, rank 0
    reads this process's; once `enough`, polled while the job trains, is true, the job is interrupted as by Ctrl-C.
    CommError if they can't be started for lack of something on this machine, or on a host."""
    limit = max(limit, liveness.LEAST_LAUNCHER_LIMIT)
    table = RankTable([host.name for host in hosts for _ in range(host.ranks)] or [""] * ranks, limit)
    with contextlib.ExitStack() as stack:
        try:
            connections = stack.enter_context(contextlib.closing(RankConnections(hosts, table, stdin)))
            launcher, variables = str(connections.launcher_address(limit)), columns_variable(sys.stderr)
            starting = started(command, ranks, hosts, launcher, connections.pmi.name, variables)
            job = LaunchedJob(stack.enter_context(starting), connections, table, not hosts, enough)
            job.begin()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            raise CommError(f"ranks can't be started: {getattr(error, 'strerror', error)}") from None
        return job.watch(start_limit)


@dataclass(eq=False)
class LaunchedJob:
    """A job whose ranks are being started or run."""

    _processes: list[Process]  # agents, or mpiexec
    _connections: RankConnections
    _table: RankTable
    _local: bool  # all ranks are on this machine
    _enough: Callable[[], bool]
    _deadline: tuple[float, str] | None = None  # for the end of the job, and what has begun the end
    _interrupts: int = 0
    _forwarded: int = 0  # interrupts
    _stopped_early: bool = False  # was interrupted because of `enough`
    _over: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        """Begins to read what its processes send, and to send them heartbeats."""
        self._connections.read_from(self._processes)
        threading.Thread(target=self._send_heartbeats, name="dslide-heartbeat", daemon=True).start()

    def watch(self, start_limit: float) -> Outcome:
        """Follows the job until its end."""
        start_end = time.monotonic() + start_limit
        try:
            with handling((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self._count_signal):
                while not self._has_ended():
                    self._connections.poll()
                    if self._interrupts > self._forwarded and not self._interrupt():
                        return self._fail("interrupted", INTERRUPTED)
                    if not self._stopped_early and not self._interrupts and self._table.step > 0 and self._enough():
                        self._stopped_early = self._interrupt()
                    if (missing := self._table.missing()) and time.monotonic() > start_end:
                        ranks = self._table.in_words(missing)
                        return self._fail(f"not started within {start_limit:g} s: {ranks}", LOST, missing)
                    if (stuck := self._table.find_stuck()) is not None:
                        return self._fail(stuck[0], LOST, stuck[1])
                    if self._deadline_passed():
                        break
        except KeyboardInterrupt:
            return self._fail("interrupted", INTERRUPTED)
        finally:
            self._end()
        return self._verdict()

    # ---- while it runs ----------------------------------------------------------------------------------------------

    def _has_ended(self) -> bool:
        return self._processes_ended() and self._connections.all_ended

    def _processes_ended(self) -> bool:
        return all(process.popen.poll() is not None for process in self._processes)

    def _deadline_passed(self) -> bool:
        """Whether a job that has begun to end takes too long for it."""
        table = self._table
        if self._processes_ended():
            wait, reason = liveness.OUTPUT_AFTER_MPIEXEC, "processes"
        elif table.lost is not None and not table.missing():
            return True
        elif table.lost is not None:  # others may be about to connect; those that don't may be the reason
            wait, reason = liveness.EXIT_AFTER_FAILURE, "loss"
        elif table.failed_code is not None:
            by_signal = table.failed_code in (INTERRUPTED, TERMINATED)
            wait, reason = liveness.EXIT_AFTER_SIGNAL if by_signal else liveness.EXIT_AFTER_FAILURE, "failure"
        elif table.all_exited():
            wait, reason = liveness.EXIT_AFTER_SUCCESS, "success"
        else:
            return False
        now = time.monotonic()
        if self._deadline is None or self._deadline[1] != reason:
            self._deadline = now + wait, reason
        return now >= self._deadline[0]

    def _count_signal(self, _signal: int, _frame: FrameType | None) -> None:
        """The second one ends the job at once."""
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt

    def _send_heartbeats(self) -> None:
        """A thread of its own: writing output may block this process, and the ranks must not notice."""
        while not self._over.wait(liveness.HEARTBEAT):
            for process in self._processes:
                process.send(b"\n")
            for control in [rank.control for rank in self._table.ranks]:
                if control is not None:
                    with contextlib.suppress(OSError):  # gone, or so busy that it has not read the last ones
                        control.send(HEARTBEAT)

    def _interrupt(self) -> bool:
        """Forwards Ctrl-C to rank 0, which agrees with the others on an end; False if the job has not begun."""
        self._forwarded = self._interrupts
        if self._stopped_early:  # a second one would end it at once
            return True
        control = self._table.ranks[0].control
        if control is None or self._table.missing():
            return False
        with contextlib.suppress(OSError):
            control.send(INTERRUPT)
        return True

    # ---- its end ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Leaves no rank behind. Ranks exit when their control connection ends; those that don't are killed."""
        self._over.set()
        with contextlib.suppress(BrokenPipeError):
            if not self._has_ended():
                self._kill()
            self._connections.stdout.finish()
            self._connections.stderr.finish()

    def _kill(self) -> None:
        self._connections.ending = True
        for rank in self._table.ranks:
            if rank.control is not None:
                with contextlib.suppress(OSError):
                    rank.control.shut()
        for process in self._processes:
            process.stop()
        self._wait_for_end(liveness.EXIT_AFTER_FAILURE)
        for rank in self._table.ranks:
            if self._local and rank.control is not None:  # still connected, so that process is still the rank
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)
        self._wait_for_end(liveness.KILL)

    def _wait_for_end(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._has_ended() and not self._unreachable() and time.monotonic() < end:
            self._connections.poll()

    def _unreachable(self) -> bool:
        """Whether all ranks that are still connected are on hosts that can't be reached any more."""
        left = [rank for rank in self._table.ranks if rank.control is not None]
        silent_since = time.monotonic() - liveness.UNREACHABLE
        return not self._local and bool(left) and all(rank.heard < silent_since for rank in left)

    def _verdict(self) -> Outcome:
        """How it ended; prints what no rank could report."""
        table, code = self._table, self._table.failed_code
        if code is not None and (table.lost is None or code in (USER_ERROR, DIVERGED, INTERRUPTED)):
            return self._outcome(code, table.failure_sentence(), table.blamed())
        lines = without_banners(self._connections.printed)
        if missing := table.never_connected():
            if table.failures:
                return self._outcome(LOST, table.failure_sentence(), missing)
            lines = lines or list(self._connections.printed)
            deaths = {table.ranks[number].death for number in missing} - {"", UNKNOWN}
            how = f" ({deaths.pop()})" if len(deaths) == 1 else ""
            return self._fail(f"{table.in_words(missing)} could not be started{how}", LOST, missing, lines)
        if (lost := table.lost) is not None:
            if reason := table.failure_sentence(lost):
                return self._outcome(LOST, reason, [lost])
            death = table.ranks[lost].death or UNKNOWN
            return self._fail(f"{table.in_words([lost])} exited without reporting ({death})", LOST, [lost], lines)
        if not table.all_exited():
            return self._fail("what started the ranks exited before them", LOST, lines=lines)
        if self._connections.output_lost:
            return self._fail(self._connections.output_lost, LOST)
        return self._outcome(0)

    def _outcome(self, code: int, reason: str = "", blamed: Sequence[int] = ()) -> Outcome:
        return self._table.outcome(code, reason, blamed, by_user=self._interrupts > 0)

    def _fail(self, message: str, code: int, blamed: Sequence[int] = (), lines: Sequence[bytes] = ()) -> Outcome:
        """Prints why the job failed, and what was held back."""
        stderr = self._connections.stderr
        stderr.finish()
        shown = [line for line in lines if line.strip(b"\0\r\t ")]
        if len(shown) == 1:
            message = f"{message}: {shown.pop().decode(errors='replace').strip()}"
        text = f"dslide: error: {message}{'; printed:' if shown else ''}\n".encode()
        stderr.write(-1, text + b"".join(b"  " + line + b"\n" for line in shown))
        return self._outcome(code, message, blamed)
