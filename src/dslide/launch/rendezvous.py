"""Rendezvous: the launcher listens for its ranks, passes on what they print, notes their messages in the rank
table, and collects what mpiexec itself prints."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from dslide.comm import liveness
from dslide.errors import LOST
from dslide.launch.mpiexec import Host
from dslide.launch.output import OutputMultiplexer
from dslide.launch.protocol import WELCOME, Hello, LauncherAddress, decode, keep_alive
from dslide.launch.rank_table import RankTable
from dslide.util.addresses import route_to

_CHUNK = 1 << 16
_MPIEXEC_LINES = 100
_ALL_ADDRESSES = ""


@dataclass(eq=False)
class _Connection:
    """A connection of a rank; `stream` is empty until it has sent its hello."""

    socket: socket.socket
    stream: str = ""
    rank: int = -1
    begun: bytes = b""  # of a line


class RankConnections:
    """The rendezvous of a job's ranks, on the addresses by which they can reach this host and on no others, and all
    their connections, read by `poll`. With `stdin`, rank 0 reads that of this process."""

    def __init__(self, hosts: Sequence[Host], table: RankTable, stdin: bool):
        self.stdout = OutputMultiplexer(sys.stdout.fileno())
        self.stderr = OutputMultiplexer(sys.stderr.fileno(), live=sys.stderr.isatty())
        self.mpiexec_lines: deque[bytes] = deque(maxlen=_MPIEXEC_LINES)  # the last ones that it has printed
        self.ending = False  # the launcher ends the job, so ranks disconnect
        self._table, self._stdin = table, stdin
        self._token = secrets.token_hex(16)  # that a rank must present
        self._open = 0  # streams of ranks and of mpiexec that have not ended, but for `in`
        self._selector = selectors.DefaultSelector()
        self.addresses, all_known = _own_addresses(hosts)
        self._listeners = [
            socket.create_server((address, 0), backlog=3 * len(table.ranks) + 10)
            for address in (self.addresses if all_known else [_ALL_ADDRESSES])
        ]
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)

    def launcher_address(self, limit: float) -> LauncherAddress:
        """How ranks reach this launcher; `limit` is the silence limit."""
        ports = cycle(listener.getsockname()[1] for listener in self._listeners)
        return LauncherAddress(self._token, limit, tuple(zip(self.addresses, ports, strict=False)))

    def read_from(self, process: subprocess.Popen[bytes]) -> None:
        """Collects what mpiexec prints."""
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, b"")
            self._open += 1

    @property
    def all_ended(self) -> bool:
        """Whether no rank is connected and mpiexec prints nothing any more."""
        return self._open == 0

    def poll(self) -> None:
        """Reads what ranks and mpiexec have sent; waits a moment if there is nothing."""
        ended: list[_Connection] = []
        for key, _ in self._selector.select(liveness.POLL):
            if key.fileobj in self._listeners:
                accepted, _ = key.fileobj.accept()
                accepted.setblocking(False)
                keep_alive(accepted)
                self._selector.register(accepted, selectors.EVENT_READ, _Connection(accepted))
            elif not isinstance(key.data, _Connection):
                self._read_mpiexec(key)
            elif not self._read(key.data):
                ended.append(key.data)
        for connection in ended:  # after all messages, which may explain it
            self._end(connection)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):  # not a pipe of mpiexec
                key.fileobj.close()
        self._selector.close()

    def _read(self, connection: _Connection) -> bool:
        """False at the end of the connection."""
        try:
            content = connection.socket.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not content:
            return False
        if not connection.stream:
            connection.begun, newline, content = (connection.begun + content).partition(b"\n")
            if not newline:
                return len(connection.begun) < _CHUNK
            if not self._welcome(connection):
                return False
        if connection.stream == "control":
            *lines, connection.begun = (connection.begun + content).split(b"\n")
            for line in lines:
                if (message := decode(line)) is not None:
                    self._table.receive(connection.rank, message)
        elif content:
            output = self.stderr if connection.stream == "err" else self.stdout
            output.write(connection.rank, content)
        return True

    def _welcome(self, connection: _Connection) -> bool:
        """Whether the line that a connection has begun with is the hello of a rank of this job."""
        hello = decode(connection.begun)
        if not isinstance(hello, Hello) or not secrets.compare_digest(str(hello.token), self._token):
            return False
        size = len(self._table.ranks)
        if hello.size != size:
            message = f"dslide: error: mpiexec was to start {size} ranks, but a rank reports {hello.size}\n"
            self.stderr.write(-1, message.encode())
            self._table.failed_code = self._table.failed_code or LOST
            return False
        connection.stream, connection.rank, connection.begun = hello.stream, hello.rank, b""
        if hello.stream == "in":
            self._selector.unregister(connection.socket)
            threading.Thread(target=_feed, args=(connection.socket, self._stdin), daemon=True).start()
            return True
        self._open += 1
        if hello.stream == "control":
            self._table.connect(hello, connection.socket)
            with contextlib.suppress(OSError):
                connection.socket.sendall(WELCOME)
        return True

    def _end(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._open -= bool(connection.stream)
        if connection.stream == "control":
            self._table.disconnect(connection.rank, expected=self.ending)

    def _read_mpiexec(self, key: selectors.SelectorKey) -> None:
        try:
            content = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return
        *lines, rest = (key.data + content).split(b"\n")
        self.mpiexec_lines.extend(lines)
        if content:
            self._selector.modify(key.fileobj, selectors.EVENT_READ, rest[-_CHUNK:])
        else:
            self.mpiexec_lines.extend([rest] if rest else [])
            self._selector.unregister(key.fileobj)
            self._open -= 1


def _own_addresses(hosts: Sequence[Host]) -> tuple[list[str], bool]:
    """The addresses by which ranks on these hosts reach this one. False if some host's route is unknown, since its name
    is known to ssh alone; then this host's name is one more address to try."""
    if not hosts:
        return ["127.0.0.1"], True
    routes = [route_to(host.name) for host in hosts]
    all_known = None not in routes
    addresses = [route[0] for route in routes if route is not None] + [socket.gethostname()] * (not all_known)
    return sorted(dict.fromkeys(addresses), key=lambda address: address.startswith("127.")), all_known


def _feed(rank_0: socket.socket, stdin: bool) -> None:
    """Sends rank 0 this process's stdin, or an empty one. (MPICH's mpiexec fails if a rank reads slowly.)"""
    with contextlib.suppress(OSError), rank_0:
        rank_0.setblocking(True)
        while stdin and (content := os.read(0, _CHUNK)):
            rank_0.sendall(content)
