"""Starts ranks and stays with them: passes on what they say, ends them on Ctrl-C, and knows how each of them ended.

Ranks connect back to this process (link.py), so that nothing depends on mpiexec but the start itself. Its exit code
can't be trusted, and what it says is kept back: it is shown only if no rank has said why the job failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from dslide.comm.communicator import DEFAULT_LIMIT
from dslide.errors import DIVERGED, INTERRUPTED, LOST, TERMINATED, USER_ERROR
from dslide.launch.mpiexec import Host, start_command
from dslide.launch.output import Output, without_banners
from dslide.launch.rank_client import ALIVE, ALIVE_SECONDS, INTERRUPT, LAUNCHER, WELCOME, keep_alive
from dslide.launch.rank_table import Outcome, RankTable
from dslide.launch.rendezvous import Rendezvous
from dslide.util.signals import handling
from dslide.util.terminal import TERMINAL

START_SECONDS = 120.0
LEAST_LIMIT = 5.0  # seconds of silence that are no reason to worry, whatever was asked for
_TURN = 0.1  # seconds between looks at clocks
_LAST_WORDS = 2.0  # seconds in which everything must have arrived when mpiexec has ended
_LEAVE_SECONDS = 1.0  # in which the others must have ended when a rank has failed,
_SAVE_SECONDS = 10.0  # when one has ended after a signal, on which all agree,
_CLOSE_SECONDS = 60.0  # or when all have come to their end
_KILL_SECONDS = 5.0  # in which mpiexec must have ended when it was asked to,
_SILENT_SECONDS = 3 * ALIVE_SECONDS  # unless those it would wait for have been silent for so long
_CHUNK = 1 << 16
_NOISE_LINES = 100
_ERROR = b"dslide: error: "


def launch(
    command: Sequence[str],
    ranks: int,
    hosts: Sequence[Host] = (),
    *,
    start_limit: float = START_SECONDS,
    limit: float = DEFAULT_LIMIT,
    stdin: bool = False,
    enough: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Runs a command as several ranks, here or on hosts, until all have ended.

    The command must be a `dslide` one, or a program that runs its work through `dslide.cli.endings.run_to_end`. `limit`
    is the silence in seconds after which a rank is given up; with `stdin`, rank 0 gets this process's; once `enough`,
    asked again and again while the job trains, says so, the job is interrupted as by Ctrl-C.
    """
    limit = max(limit, LEAST_LIMIT)
    with contextlib.closing(_Job(ranks, hosts, limit, stdin, enough)) as job:
        added = {LAUNCHER: job.door.told(limit)}
        if sys.stderr.isatty():
            added[TERMINAL] = str(os.get_terminal_size(sys.stderr.fileno()).columns or 80)
        start: list[str] = []
        environment = {**os.environ, **added}
        if ranks > 1 or hosts:
            start, environment = start_command(ranks, hosts, added, job.door.addresses[0])
        with subprocess.Popen(
            [*start, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C on the terminal is for this process alone
        ) as process:
            return job.watch(process, start_limit)


@dataclass(eq=False)
class _Connection:
    """A connection of a rank; `stream` is empty until it has said who it is."""

    socket: socket.socket
    stream: str = ""
    rank: int = -1
    begun: bytes = b""  # of a line


class _Job:
    def __init__(
        self, ranks: int, hosts: Sequence[Host], limit: float, stdin: bool, enough: Callable[[], bool]
    ):  # fmt: skip
        self.door = Rendezvous(hosts, backlog=3 * ranks + 10)
        names = [host.name for host in hosts for _ in range(host.ranks)] or [""] * ranks
        self._roster = RankTable(names, limit)
        self._ranks = self._roster.ranks
        self._local, self._stdin, self._enough = not hosts, stdin, enough
        self._selector = selectors.DefaultSelector()
        self._connections = 0
        self._outputs = {"out": Output(sys.stdout.fileno()), "err": Output(sys.stderr.fileno(), live=True)}
        self._noise: deque[bytes] = deque(maxlen=_NOISE_LINES)
        self._explained: dict[int, str] = {}  # what is wrong, by the rank that has said so first
        self._failed: int | None = None  # the first exit code that was told and is not 0
        self._lost: int | None = None  # a rank that ended without telling one, before all others
        self._deadline: tuple[float, str] | None = None  # when patience ends, and with what
        self._interrupts = self._passed_on = 0
        self._asked = False  # to end, since it is enough
        self._ending = False
        self._over_and_done = threading.Event()

    def watch(self, process: subprocess.Popen[bytes], start_limit: float) -> Outcome:
        """Goes along with the job until its end."""
        self._process = process
        for listener in self.door.listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        threading.Thread(target=self._reassure, name="dslide-launch", daemon=True).start()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, b"")
        start_end = time.monotonic() + start_limit
        try:
            with self._signals():
                while not self._over():
                    self._turn()
                    if self._interrupts > self._passed_on and not self._interrupt():
                        return self._say("interrupted", INTERRUPTED)
                    if not self._asked and not self._interrupts and self._roster.step > 0 and self._enough():
                        self._asked = self._interrupt()
                    missing = self._roster.missing()
                    if missing and time.monotonic() > start_end:
                        words = self._roster.in_words(missing)
                        return self._say(f"not started within {start_limit:g} s: {words}", LOST, missing)
                    if (wrong := self._roster.standstill()) is not None:
                        return self._say(wrong[0], LOST, wrong[1])
                    if not self._patient():
                        break
        except KeyboardInterrupt:
            return self._say("interrupted", INTERRUPTED)
        finally:
            self._end()
        return self._verdict()

    # ---- what comes in --------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Takes in what ranks and mpiexec have sent."""
        ended: list[_Connection] = []
        for key, _ in self._selector.select(_TURN):
            if key.fileobj in self.door.listeners:
                accepted, _ = key.fileobj.accept()
                accepted.setblocking(False)
                keep_alive(accepted)
                self._selector.register(accepted, selectors.EVENT_READ, _Connection(accepted))
            elif isinstance(key.data, _Connection):
                if not self._read(key.data):
                    ended.append(key.data)
            else:
                self._read_noise(key)
        for connection in ended:  # after what others have said, which may explain it
            self._gone(connection)

    def _read(self, connection: _Connection) -> bool:
        """False at the end of the connection."""
        try:
            content = connection.socket.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            content = b""
        if not content:
            return False
        if not connection.stream:
            line, newline, content = (connection.begun + content).partition(b"\n")
            connection.begun = line
            if not newline:
                return len(line) < _CHUNK
            if not self._greet(connection, line):
                return False
        if connection.stream == "control":
            self._take_control(connection, content)
        elif content:
            if connection.stream == "err" and _ERROR in content:
                sentence = content.partition(_ERROR)[2].partition(b"\n")[0].decode(errors="replace")
                self._explained.setdefault(connection.rank, sentence)
            self._outputs[connection.stream].take(connection.rank, content)
        return True

    def _greet(self, connection: _Connection, line: bytes) -> bool:
        """Whether this is a rank of ours."""
        try:
            hello = json.loads(line)
            token, stream, number, size = (hello[key] for key in ("token", "stream", "rank", "size"))
            ours = secrets.compare_digest(str(token), self.door.token)
        except (ValueError, KeyError, TypeError, RecursionError):  # what anybody may send who finds the port
            return False
        if not ours:
            return False
        if size != len(self._ranks):
            self._outputs["err"].take(
                -1, f"dslide: error: mpiexec was to start {len(self._ranks)} ranks, but one says {size}\n".encode()
            )
            self._failed = self._failed or LOST
            return False
        rank = self._ranks[number]
        connection.stream, connection.rank, connection.begun = stream, number, b""
        if stream == "in":
            self._selector.unregister(connection.socket)
            threading.Thread(target=_feed, args=(connection.socket, self._stdin), daemon=True).start()
            return True
        self._connections += 1
        if stream == "control":
            rank.control, rank.host, rank.pid = connection.socket, hello["host"], hello["pid"]
            rank.heard = time.monotonic()
            with contextlib.suppress(OSError):
                connection.socket.sendall(WELCOME)
        return True

    def _take_control(self, connection: _Connection, content: bytes) -> None:
        *lines, connection.begun = (connection.begun + content).split(b"\n")
        for line in lines:
            self._failed = self._failed or self._roster.take(connection.rank, line) or None

    def _gone(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if not connection.stream:
            return
        self._connections -= 1
        if connection.stream == "control":
            rank = self._ranks[connection.rank]
            rank.control = None
            if rank.code is None and self._failed is None and self._lost is None and not self._ending:
                self._lost = connection.rank

    def _read_noise(self, key: selectors.SelectorKey) -> None:
        try:
            content = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return
        *lines, rest = (key.data + content).split(b"\n")
        self._noise.extend(lines)
        if content:
            self._selector.modify(key.fileobj, selectors.EVENT_READ, rest[-_CHUNK:])
        else:
            self._noise.extend([rest] if rest else [])
            self._selector.unregister(key.fileobj)

    # ---- how it goes on -------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        pipes = [self._process.stdout, self._process.stderr]
        reading = any(key.fileobj in pipes for key in self._selector.get_map().values())
        return self._process.poll() is not None and self._connections == 0 and not reading

    def _patient(self) -> bool:
        """Whether the job may go on: once it should be over, there is a limit to its end."""
        if self._process.poll() is not None:
            wait, reason = _LAST_WORDS, "mpiexec"
        elif self._lost is not None and not self._roster.missing():
            return False
        elif self._lost is not None:  # others may be about to begin; those that don't may be the reason
            wait, reason = _LEAVE_SECONDS, "loss"
        elif self._failed is not None:
            wait, reason = _SAVE_SECONDS if self._failed in (INTERRUPTED, TERMINATED) else _LEAVE_SECONDS, "failure"
        elif all(rank.code is not None for rank in self._ranks):
            wait, reason = _CLOSE_SECONDS, "end"
        else:
            return True
        now = time.monotonic()
        if self._deadline is None or self._deadline[1] != reason:
            self._deadline = now + wait, reason
        return now < self._deadline[0]

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C, and what else asks for an end, is noted; pressed again, it ends the job at once."""

        def note(_signal: int, _frame: FrameType | None) -> None:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt

        with handling((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), note):
            yield

    def _reassure(self) -> None:
        """The thread that gives signs of life: what this process says may wait for a reader, and the ranks must not."""
        while not self._over_and_done.wait(ALIVE_SECONDS):
            for control in [rank.control for rank in self._ranks]:
                if control is not None:
                    with contextlib.suppress(OSError):  # gone, or so busy that it has not taken the last ones
                        control.send(ALIVE)

    def _interrupt(self) -> bool:
        """Passes Ctrl-C on to rank 0, which agrees with the others on an end; False if there is no job yet to end."""
        self._passed_on = self._interrupts
        if self._asked:  # again would be at once
            return True
        control = self._ranks[0].control
        if control is None or self._roster.missing():
            return False
        with contextlib.suppress(OSError):
            control.sendall(INTERRUPT)
        return True

    def _end(self) -> None:
        """Leaves nothing behind. Ranks end when their control connection does; what doesn't is killed."""
        self._over_and_done.set()
        with contextlib.suppress(BrokenPipeError):
            if not self._over():
                self._kill()
            for output in self._outputs.values():
                output.finish()
        with contextlib.suppress(ProcessLookupError):  # mpiexec if it still runs, and what it has left behind
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Connection):
                key.data.socket.close()
        self._selector.close()
        self.door.close()

    def _kill(self) -> None:
        self._ending = True
        for rank in self._ranks:
            if rank.control is not None:
                with contextlib.suppress(OSError):
                    rank.control.shutdown(socket.SHUT_WR)
        if self._process.poll() is None:
            self._process.terminate()
        self._wait_for_end(_LEAVE_SECONDS)
        for rank in self._ranks:
            if self._local and rank.control is not None:  # still connected, so the process is there and is the rank
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)
        self._wait_for_end(_KILL_SECONDS)

    def _wait_for_end(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._over() and not self._cut_off() and time.monotonic() < end:
            self._turn()

    def _cut_off(self) -> bool:
        """Whether all ranks that are still connected are out of reach, on hosts to which nothing leads any more."""
        left = [rank for rank in self._ranks if rank.control is not None]
        silent_since = time.monotonic() - _SILENT_SECONDS
        return not self._local and bool(left) and all(rank.heard < silent_since for rank in left)

    # ---- what it was ----------------------------------------------------------------------------------------------

    def _verdict(self) -> Outcome:
        """How it ended; says what no rank could say."""
        said = next(iter(self._explained.values()), "")
        if self._failed is not None and (self._lost is None or self._failed in (USER_ERROR, DIVERGED, INTERRUPTED)):
            return self._outcome(self._failed, said, self._roster.blamed())
        if missing := self._roster.missing():
            if self._explained:
                return self._outcome(LOST, said, missing)
            noise = without_banners(self._noise) or list(self._noise)
            return self._say(f"{self._roster.in_words(missing)} could not be started", LOST, missing, noise)
        if self._lost is not None:
            if self._lost in self._explained:
                return self._outcome(LOST, self._explained[self._lost], [self._lost])
            message = f"{self._ranks[self._lost].name(self._lost)} ended without a word (killed?)"
            return self._say(message, LOST, [self._lost], without_banners(self._noise))
        if any(rank.code is None for rank in self._ranks):
            return self._say("mpiexec ended before the ranks", LOST, noise=without_banners(self._noise))
        return self._outcome(0)

    def _outcome(self, code: int, reason: str = "", blamed: Sequence[int] = ()) -> Outcome:
        return self._roster.outcome(code, reason, blamed, by_user=self._interrupts > 0)

    def _say(self, message: str, code: int, blamed: Sequence[int] = (), noise: Sequence[bytes] = ()) -> Outcome:
        error = self._outputs["err"]
        error.finish()
        shown = [line for line in noise if line.strip(b"\0\r\t ")]
        text = f"dslide: error: {message}{'; mpiexec says:' if shown else ''}\n".encode()
        error.take(-1, text + b"".join(b"  " + line + b"\n" for line in shown))
        return self._outcome(code, message, blamed)


def _feed(rank_0: socket.socket, stdin: bool) -> None:
    """Gives rank 0 this process's stdin, or an empty one. (MPICH's mpiexec fails if a rank reads slowly.)"""
    with contextlib.suppress(OSError), rank_0:
        rank_0.setblocking(True)
        while stdin and (content := os.read(0, _CHUNK)):
            rank_0.sendall(content)
