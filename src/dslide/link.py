"""A rank's line to the process that launched it (launch.py). What the rank prints goes there, and its exit code; Ctrl-C
comes from there. A connection for each stream, begun by a line that says who this is: `control`, `out`, `err` and, for
rank 0, `in`. What native code prints stays with mpiexec, so that its noise and what dslide says can be told apart."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import threading
from typing import BinaryIO, Literal, NoReturn, TextIO

from .comm.mpi import launched_as
from .errors import INTERRUPTED, LOST

LAUNCHER = "DSLIDE_LAUNCHER"  # variable: a secret, a port, and the addresses of the launching host
TERMINAL = "DSLIDE_TERMINAL"  # variable: columns of the terminal that shows what ranks say, if it is one
WELCOME, INTERRUPT = b"welcome\n", b"interrupt\n"
_CONNECT_SECONDS = 10.0  # for each address


class Link:
    """This rank's connections to its launcher."""

    def __init__(self, told: str):
        self._token, port, addresses = told.split(" ")
        self._rank, self._size = launched_as()
        self._control = self._reach(addresses.split(","), int(port))
        faulthandler.enable(sys.__stderr__ or sys.stderr, all_threads=False)  # a crash is a word, too
        live = TERMINAL in os.environ
        sys.stdout = self._stream("out", sys.stdout, line_by_line=live)
        sys.stderr = self._stream("err", sys.stderr, line_by_line=True)
        if self._rank == 0:
            sys.stdin = self._stream("in", sys.stdin)
        threading.Thread(target=self._listen, name="dslide-link", daemon=True).start()

    def end(self, code: int) -> None:
        """Tells the exit code, after everything that was printed."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._control.sendall(f"end {code}\n".encode())

    def _reach(self, addresses: list[str], port: int) -> socket.socket:
        for address in addresses:
            try:
                self._address = address, port
                control = self._open("control")
                if control.recv(len(WELCOME), socket.MSG_WAITALL) == WELCOME:
                    control.settimeout(None)
                    return control
            except OSError:
                continue
        print(
            f"dslide: error: rank {self._rank} ({socket.gethostname()}) can't reach the launching host at port "
            f"{port} of {' or '.join(addresses)}",
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
        """Ctrl-C of the launcher is Ctrl-C here; and without a launcher there is nobody to work for."""
        main = threading.main_thread().ident
        lines: BinaryIO = self._control.makefile("rb")
        try:
            for line in lines:
                if line == INTERRUPT and main is not None:
                    signal.pthread_kill(main, signal.SIGINT)
        except OSError:
            pass
        os._exit(INTERRUPTED)


_link: Link | None = None


def link() -> Link | None:
    """The line to this rank's launcher, made at the first call; None if it was not started by one of ours."""
    global _link
    told = os.environ.pop(LAUNCHER, None)  # not for processes that this one starts
    if told is not None and _link is None:
        _link = Link(told)
    return _link


def keep_alive(connection: socket.socket) -> None:
    """A host that is gone without a word ends the connection some day, and idle ones are not forgotten on the way."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
