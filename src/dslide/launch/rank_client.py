"""A rank's connections to the launcher that started it (protocol.py, handshake.py). What the rank prints goes there,
and its exit code; Ctrl-C comes from there. What native code prints stays on the stderr it was started with, so that it
can be told from dslide's output.

Each side sends the other a heartbeat every second. A rank whose launcher is silent for too long exits."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from hmac import compare_digest
from typing import Literal, NoReturn, TextIO

from dslide.comm import liveness
from dslide.comm.mpi import current, launched_as
from dslide.errors import INTERRUPTED, LOST, CommError
from dslide.launch import handshake, protocol
from dslide.util.terminal import launcher_columns

_ATTEMPTS, _PAUSE = 3, 0.1  # to connect; seconds between them, longer each time: strangers may crowd the port


class RankClient:
    """Connects to the launcher, and replaces stdout, stderr and, on rank 0, stdin by connections to it."""

    def __init__(self, launcher: protocol.LauncherAddress):
        self.launcher = launcher
        self._rank, self._size = launched_as()
        self._control_socket, self._control = self._connect()
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
        self._control.send(protocol.encode(message))

    def _connect(self) -> tuple[socket.socket, handshake.Control]:
        for attempt in range(_ATTEMPTS):
            for place in self.launcher.places:
                self._place = place
                with suppress(OSError):
                    connection, seal = self._open("control")
                    connection.settimeout(None)
                    return connection, handshake.Control(connection, seal)
            time.sleep(_PAUSE * attempt)
        places = " or ".join(f"{address}:{port}" for address, port in self.launcher.places)
        self._give_up(f"can't reach the launcher at {places}")

    def _open(self, stream: str) -> tuple[socket.socket, handshake.Seal]:
        """A connection, once both sides have proven that they know the secret. OSError if that fails."""
        connection = socket.create_connection(self._place, timeout=liveness.CONNECT)
        try:
            protocol.keep_alive(connection)
            challenge = handshake.challenge_of(_receive(connection, handshake.CHALLENGE_BYTES))
            here, number = socket.gethostname(), handshake.new_number()
            hello = protocol.Hello(stream, self._rank, self._size, here, os.getpid(), number)
            secret = self.launcher.secret
            connection.sendall(protocol.encode(handshake.proven(secret, challenge, hello)) + b"\n")
            welcome = _receive(connection, handshake.WELCOME_BYTES)
            if not compare_digest(welcome, handshake.welcome_line(secret, challenge, hello)):
                raise ConnectionError("the launcher does not know the secret")
        except OSError:
            connection.close()
            raise
        return connection, handshake.Seal(secret, challenge, hello, handshake.RANK_SIDE)

    def _give_up(self, reason: str) -> NoReturn:
        print(f"dslide: error: rank {self._rank} ({socket.gethostname()}) {reason}", file=sys.stderr, flush=True)
        os._exit(LOST)

    def _stream(self, name: str, like: TextIO, line_buffered: bool = False) -> TextIO:
        for attempt in range(_ATTEMPTS):
            with suppress(OSError):
                connection, _ = self._open(name)
                break
            time.sleep(_PAUSE * attempt)
        else:
            self._give_up(f"can't open another connection to the launcher at {self._place[0]}:{self._place[1]}")
        connection.settimeout(None)
        mode: Literal["r", "w"] = "r" if name == "in" else "w"
        return open(connection.detach(), mode, 1 if line_buffered else -1, encoding=like.encoding, errors=like.errors)

    def _listen(self) -> NoReturn:
        """Turns the launcher's interrupt into Ctrl-C here; exits without a launcher. Silence is counted in polls of
        this thread, not by a clock: a process that was stopped has not heard anything meanwhile."""
        main, silent, begun = threading.main_thread().ident, 0.0, b""
        with suppress(OSError):
            while silent < self.launcher.limit:
                if select.select([self._control_socket], [], [], liveness.HEARTBEAT)[0]:
                    content = self._control_socket.recv(1 << 12)
                    if not content:
                        break
                    *lines, begun = (begun + content).split(b"\n")
                    for line in lines:
                        if self._control.open(line) == protocol.INTERRUPT and main is not None:
                            signal.pthread_kill(main, signal.SIGINT)
                    silent = 0.0
                else:
                    silent += liveness.HEARTBEAT
                self._send_heartbeat()
        os._exit(INTERRUPTED)


def _receive(connection: socket.socket, size: int) -> bytes:
    """So many bytes; fewer if the connection ends before."""
    content = b""
    while len(content) < size and (more := connection.recv(size - len(content))):
        content += more
    return content


_client: RankClient | None = None


def rank_client() -> RankClient | None:
    """The connection to the launcher that started this rank; None in a process that no launcher has started. The first
    call connects, and removes the launcher's variable from the environment: processes that a rank starts are not ranks,
    and must not connect."""
    global _client
    place = os.environ.pop(protocol.LAUNCHER, None)
    if place is not None and _client is None:
        try:
            address = protocol.LauncherAddress.take(place, launched_as()[0])
        except (OSError, ValueError):
            raise CommError(f"{protocol.LAUNCHER}: {place!r} does not lead to a launcher of this job") from None
        _client = RankClient(address)
        _client.listen()  # an error of this is reported by the client
    return _client
