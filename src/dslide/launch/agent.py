"""The agent of a launcher on one host, started there over ssh: starts the host's ranks, passes on what they ask of the
launcher's PMI server, and leaves none of them behind. `python -m dslide.launch.agent`, with JSON lines on stdin and
stdout.

The first line from the launcher is an `Order`. What ranks must keep secret is in it, so it is on no command line, in no
environment, and crosses the network inside ssh. From then on, lines from the launcher are `[rank, text]` for the rank's
PMI socket, and lines to it are `["pmi", rank, text]` and, at the end of a rank, `["ended", rank, code, remark]`. The
launcher sends an empty line every second. The end of stdin is that of the launcher or of the connection: then, or if
nothing comes for the silence limit, the ranks get a moment to exit, and are killed. (They watch the launcher
themselves, but not while they are stopped, or in MPI's own start and end.)
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from dslide.comm import liveness
from dslide.launch.protocol import LAUNCHER, LauncherAddress
from dslide.util import shared_memory

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Order:
    """What an agent is to do: start ranks, or, if there are none, only write the address of the launcher to files."""

    launcher: str  # its address, with the secret
    ranks: list[int]
    node: int  # among those of the job
    size: int  # ranks of the job
    store: str  # name of the one that PMI has
    command: list[str]
    folder: str  # current directory
    environment: dict[str, str]  # added to what the host's own is
    files: list[str]  # for ranks that mpiexec starts


def main() -> int:
    try:
        order = Order(**json.loads(sys.stdin.buffer.readline()))
    except (ValueError, TypeError):
        print("dslide: no order came from the launcher", file=sys.stderr)
        return 1
    try:
        if order.files:
            write_files(order.files, order.launcher)
            return 0
        return _Agent(order).run()
    except OSError as error:
        print(f"{error.filename}: {error.strerror}" if error.filename else error.strerror, file=sys.stderr)
        return 1


def write_files(files: Sequence[str], launcher: str) -> None:
    """Writes the launcher's address to new files that only this user can read; ranks remove them."""
    for path in files:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(launcher)


class _Agent:
    """The ranks of this host, from start to end."""

    def __init__(self, order: Order):
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}  # that have not ended
        self._sockets: dict[int, socket.socket] = {}  # of PMI, by rank
        self._begun: dict[int, bytes] = {}  # of a line, by rank; of the launcher's by -1
        self._order = order
        self._kill_at: float | None = None
        self._limit = LauncherAddress.parse(order.launcher).limit
        self._silent = 0.0  # seconds in which this process ran and the launcher sent nothing
        if order.size > 1 and (full := shared_memory.shortage(len(order.ranks))):
            raise OSError(errno.ENOSPC, full)
        os.chdir(order.folder)
        try:
            for rank in order.ranks:
                self._start(rank, order)
        except OSError:
            self._kill()
            raise
        self._selector.register(0, selectors.EVENT_READ, -1)

    def _start(self, rank: int, order: Order) -> None:
        ours, theirs = socket.socketpair()
        self._sockets[rank], self._begun[rank] = ours, b""
        address, write = os.pipe()
        os.write(write, order.launcher.encode())
        os.close(write)
        variables = {LAUNCHER: f"fd {address}", "PMI_RANK": str(rank), "PMI_SIZE": str(order.size)}
        variables |= {"PMI_FD": str(theirs.fileno()), "PMI_SPAWNED": "0"}
        with theirs:
            self._ranks[rank] = subprocess.Popen(
                order.command, stdin=subprocess.DEVNULL, stdout=sys.stderr, pass_fds=(theirs.fileno(), address),
                env={**os.environ, **order.environment, **variables},
            )  # fmt: skip
        os.close(address)
        self._selector.register(ours, selectors.EVENT_READ, rank)

    def run(self) -> int:
        """Serves the ranks until all have ended."""
        last, processes = time.monotonic(), [process.pid for process in self._ranks.values()]
        while self._ranks:
            for key, _ in self._selector.select(liveness.POLL):
                self._read(key)
            for rank, process in list(self._ranks.items()):
                if (code := process.poll()) is not None:
                    self._end(rank, code)
            now = time.monotonic()
            self._silent += min(now - last, 2 * liveness.POLL)  # more: this process was stopped
            last = now
            if self._silent > self._limit:
                self._end_soon()
            if self._kill_at is not None and now >= self._kill_at:
                self._kill()
        shared_memory.unlink_of(self._order.store, self._order.node, processes)
        return 0

    def _read(self, key: selectors.SelectorKey) -> None:
        rank = key.data
        try:
            content = os.read(key.fd, _CHUNK)
        except OSError:
            content = b""
        if not content:
            self._selector.unregister(key.fileobj)
            if rank == -1:
                self._end_soon()
            return
        if rank == -1:
            self._silent = 0.0
        *lines, self._begun[rank] = (self._begun.get(rank, b"") + content).split(b"\n")
        for line in lines:
            if rank >= 0:
                self._tell("pmi", rank, line.decode(errors="replace"))
            elif line:
                to, text = json.loads(line)
                with suppress(OSError):  # it has ended
                    self._sockets[to].sendall(text.encode() + b"\n")

    def _end(self, rank: int, code: int) -> None:
        del self._ranks[rank]
        self._tell(
            "ended", rank, code, shared_memory.shortage(len(self._order.ranks)) if code == -signal.SIGBUS else ""
        )

    def _tell(self, *message: object) -> None:
        try:
            os.write(1, json.dumps(message).encode() + b"\n")
        except OSError:  # the launcher is gone
            self._end_soon()

    def _end_soon(self) -> None:
        self._kill_at = self._kill_at or time.monotonic() + liveness.EXIT_AFTER_FAILURE

    def _kill(self) -> None:
        for process in self._ranks.values():
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
