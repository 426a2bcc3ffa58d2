"""A rank's connections to the launcher that started it (protocol.py). What the rank prints goes there, and its exit
code; Ctrl-C comes from there. What native code prints stays with mpiexec, so that it can be told from dslide's output.

Each side sends the other a heartbeat every second. A rank whose launcher is silent for too long exits."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NoReturn, TextIO

from dslide.comm import liveness
from dslide.comm.mpi import current, launched_as
from dslide.errors import INTERRUPTED, LOST
from dslide.launch import protocol
from dslide.util.terminal import launcher_columns


class RankClient:
    """Connects to the launcher, and replaces stdout, stderr and, on rank 0, stdin by connections to it."""

    def __init__(self, launcher: protocol.LauncherAddress):
        self._launcher = launcher
        self._rank, self._size = launched_as()
        self._sending = threading.Lock()
        self._control = self._connect()
        faulthandler.enable(sys.__stderr__ or sys.stderr, all_threads=False)  # print a traceback on crashes
        sys.stdout = self._stream("out", sys.stdout, line_buffered=launcher_columns() > 0)
        sys.stderr = self._stream("err", sys.stderr, line_buffered=True)
        if self._rank == 0:
            sys.stdin = self._stream("in", sys.stdin)

    def listen(self) -> None:
        """Starts the thread that listens to the launcher and sends heartbeats."""
        threading.Thread(target=self._listen, name="dslide-rank-client", daemon=True).start()

    def report_exit(self, code: int, blamed: Sequence[int] = (), failure: str = "") -> None:
        """Reports the exit code, the ranks that caused it and, if known, why; after everything that was printed."""
        if failure:
            self._send(protocol.Failure(failure))
        sys.stdout.flush()
        sys.stderr.flush()
        self._send_heartbeat()
        self._send(protocol.Exit(code, list(blamed)))

    def _send_heartbeat(self) -> None:
        comm = current()
        self._send(protocol.Progress(0, 0) if comm is None else protocol.Progress(comm.step, comm.exchanges))

    def _send(self, message: protocol.Message) -> None:
        with self._sending:
            self._control.sendall(protocol.encode(message))

    def _connect(self) -> socket.socket:
        for place in self._launcher.places:
            self._place = place
            with suppress(OSError):
                control = self._open("control")
                if control.recv(len(protocol.WELCOME), socket.MSG_WAITALL) == protocol.WELCOME:
                    control.settimeout(None)
                    return control
        places = " or ".join(f"{address}:{port}" for address, port in self._launcher.places)
        rank = f"rank {self._rank} ({socket.gethostname()})"
        print(f"dslide: error: {rank} can't reach the launcher at {places}", file=sys.stderr, flush=True)
        os._exit(LOST)

    def _open(self, stream: str) -> socket.socket:
        connection = socket.create_connection(self._place, timeout=liveness.CONNECT)
        protocol.keep_alive(connection)
        hello = protocol.Hello(self._launcher.token, stream, self._rank, self._size, socket.gethostname(), os.getpid())
        connection.sendall(protocol.encode(hello))
        return connection

    def _stream(self, name: str, like: TextIO, line_buffered: bool = False) -> TextIO:
        connection = self._open(name)
        connection.settimeout(None)
        mode: Literal["r", "w"] = "r" if name == "in" else "w"
        return open(connection.detach(), mode, 1 if line_buffered else -1, encoding=like.encoding, errors=like.errors)

    def _listen(self) -> NoReturn:
        """Turns the launcher's interrupt into Ctrl-C here; exits without a launcher. Silence is counted in polls of
        this thread, not by a clock: a process that was stopped has not heard anything meanwhile."""
        main, silent, begun = threading.main_thread().ident, 0.0, b""
        with suppress(OSError):
            while silent < self._launcher.limit:
                if select.select([self._control], [], [], liveness.HEARTBEAT)[0]:
                    content = self._control.recv(1 << 12)
                    if not content:
                        break
                    *lines, begun = (begun + content).split(b"\n")
                    if protocol.INTERRUPT.rstrip() in lines and main is not None:
                        signal.pthread_kill(main, signal.SIGINT)
                    silent = 0.0
                else:
                    silent += liveness.HEARTBEAT
                self._send_heartbeat()
        os._exit(INTERRUPTED)


_client: RankClient | None = None


def rank_client() -> RankClient | None:
    """The connection to the launcher that started this rank; None in a process that no launcher has started. The first
    call connects, and removes the launcher's variable from the environment: processes that a rank starts are not ranks,
    and must not connect."""
    global _client
    address = os.environ.pop(protocol.LAUNCHER, None)
    if address is not None and _client is None:
        _client = RankClient(protocol.LauncherAddress.parse(address))
        _client.listen()  # an error of this is reported by the client
    return _client
