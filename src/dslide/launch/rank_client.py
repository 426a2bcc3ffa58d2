"""A rank's line to the process that launched it (launch.py). What the rank prints goes there, and its exit code; Ctrl-C
comes from there. A connection for each stream, begun by a line that says who this is: `control`, `out`, `err` and, for
rank 0, `in`. What native code prints stays with mpiexec, so that its noise and what dslide says can be told apart.

Once a second each side gives the other a sign of life; that of a rank says how far it is. A rank whose launcher is
silent for too long ends."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NoReturn, TextIO

from dslide.comm.mpi import current, launched_as
from dslide.errors import INTERRUPTED, LOST
from dslide.util.terminal import TERMINAL

# Variable: a secret, the silence in seconds after which a launcher is given up, and where it listens, as in
# 10.0.0.7:32801,alpha:32801.
LAUNCHER = "DSLIDE_LAUNCHER"
WELCOME, INTERRUPT, ALIVE = b"welcome\n", b"interrupt\n", b"alive\n"
ALIVE_SECONDS = 1.0  # between signs of life
_CONNECT_SECONDS = 10.0  # for each address


class Link:
    """This rank's connections to its launcher."""

    def __init__(self, told: str):
        self._token, limit, places = told.split(" ")
        self._limit = float(limit)
        self._rank, self._size = launched_as()
        self._sending = threading.Lock()
        self._control = self._reach(places.split(","))
        faulthandler.enable(sys.__stderr__ or sys.stderr, all_threads=False)  # a crash is a word, too
        live = TERMINAL in os.environ
        sys.stdout = self._stream("out", sys.stdout, line_by_line=live)
        sys.stderr = self._stream("err", sys.stderr, line_by_line=True)
        if self._rank == 0:
            sys.stdin = self._stream("in", sys.stdin)

    def listen(self) -> None:
        """From now on hears what the launcher says, and gives signs of life."""
        threading.Thread(target=self._listen, name="dslide-link", daemon=True).start()

    def end(self, code: int, blamed: Sequence[int] = ()) -> None:
        """Tells the exit code, and the ranks to blame for it, after everything that was printed."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._tell_progress()
        self._tell(" ".join(map(str, ("end", code, *blamed))))

    def _tell_progress(self) -> None:
        comm = current()
        self._tell("alive 0 0" if comm is None else f"alive {comm.step} {comm.exchanges}")

    def _tell(self, line: str) -> None:
        with self._sending:
            self._control.sendall(line.encode() + b"\n")

    def _reach(self, places: list[str]) -> socket.socket:
        for place in places:
            try:
                address, _, port = place.rpartition(":")
                self._address = address, int(port)
                control = self._open("control")
                if control.recv(len(WELCOME), socket.MSG_WAITALL) == WELCOME:
                    control.settimeout(None)
                    return control
            except OSError:
                continue
        print(
            f"dslide: error: rank {self._rank} ({socket.gethostname()}) can't reach the launching host at "
            f"{' or '.join(places)}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(LOST)

    def _open(self, stream: str) -> socket.socket:
        connection = socket.create_connection(self._address, timeout=_CONNECT_SECONDS)
        keep_alive(connection)
        hello = {
            "token": self._token,
            "stream": stream,
            "rank": self._rank,
            "size": self._size,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        connection.sendall(json.dumps(hello).encode() + b"\n")
        return connection

    def _stream(self, name: str, like: TextIO, line_by_line: bool = False) -> TextIO:
        connection = self._open(name)
        connection.settimeout(None)
        mode: Literal["r", "w"] = "r" if name == "in" else "w"
        buffering = 1 if line_by_line else -1
        return open(connection.detach(), mode, buffering, encoding=like.encoding, errors=like.errors)

    def _listen(self) -> NoReturn:
        """Ctrl-C of the launcher is Ctrl-C here; and without a launcher there is nobody to work for. Silence is counted
        in turns of this thread, not by a clock: a process that stood still itself has heard nothing, either."""
        main, silent, begun = threading.main_thread().ident, 0.0, b""
        with suppress(OSError):
            while silent < self._limit:
                if select.select([self._control], [], [], ALIVE_SECONDS)[0]:
                    content = self._control.recv(1 << 12)
                    if not content:
                        break
                    *lines, begun = (begun + content).split(b"\n")
                    if INTERRUPT.rstrip() in lines and main is not None:
                        signal.pthread_kill(main, signal.SIGINT)
                    silent = 0.0
                else:
                    silent += ALIVE_SECONDS
                self._tell_progress()
        os._exit(INTERRUPTED)


_link: Link | None = None


def link() -> Link | None:
    """The line to this rank's launcher, made at the first call; None if it was not started by one of ours."""
    global _link
    told = os.environ.pop(LAUNCHER, None)  # not for processes that this one starts
    if told is not None and _link is None:
        _link = Link(told)
        _link.listen()  # if that fails, the line is there to say so
    return _link


def keep_alive(connection: socket.socket) -> None:
    """A host that is gone without a word ends the connection some day, and idle ones are not forgotten on the way."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
