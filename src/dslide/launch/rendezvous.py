"""Rendezvous: the launcher listens for its ranks, passes on what they print, notes their messages in the rank table,
serves PMI through the agents, and collects what else is printed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

from dslide.comm import liveness
from dslide.errors import LOST
from dslide.launch import handshake
from dslide.launch.mpiexec import Host
from dslide.launch.output import OutputMultiplexer
from dslide.launch.pmi import PmiServer
from dslide.launch.processes import Process
from dslide.launch.protocol import LONGEST_LINE, Hello, LauncherAddress, decode, keep_alive
from dslide.launch.rank_table import RankTable
from dslide.util.addresses import route_to

_CHUNK = 1 << 16
_PRINTED_LINES = 100
_ALL_ADDRESSES = ""


@dataclass(eq=False)
class _Connection:
    """A connection of a rank, or, until its hello has been checked, of a stranger; `stream` is empty then."""

    socket: socket.socket
    challenge: str = field(default_factory=handshake.new_number)
    accepted: float = field(default_factory=time.monotonic)
    stream: str = ""
    rank: int = -1
    begun: bytes = b""  # of a line
    control: handshake.Control | None = None


@dataclass(eq=False)
class _Pipe:
    """A pipe from an agent or from mpiexec; `agent` if PMI comes out of it, and else what was printed."""

    process: Process
    agent: bool
    begun: bytes = b""  # of a line


class RankConnections:
    """The rendezvous of a job's ranks, on the addresses by which they can reach this host and on no others, and all
    their connections, read by `poll`. With `stdin`, rank 0 reads that of this process."""

    def __init__(self, hosts: Sequence[Host], table: RankTable, stdin: bool):
        self.stdout = OutputMultiplexer(sys.stdout.fileno())
        self.stderr = OutputMultiplexer(sys.stderr.fileno(), live=sys.stderr.isatty())
        self.printed: deque[bytes] = deque(maxlen=_PRINTED_LINES)  # last lines of ssh, mpiexec, and native code
        self.output_lost = ""  # a sentence about it
        self.ending = False  # the launcher ends the job, so ranks disconnect
        self._table, self._stdin = table, stdin
        self._secret = secrets.token_hex(16)  # that a rank must prove to know
        per_node = [host.ranks for host in hosts] or [len(table.ranks)]
        self.pmi = PmiServer(per_node, secrets.token_hex(8))
        self._agents: dict[int, Process] = {}  # by rank
        self._open = 0  # streams of ranks and pipes of processes that have not ended, but for `in`
        self._strangers: dict[_Connection, None] = {}  # who has not proven to be a rank yet, oldest first
        self._selector = selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self.addresses, all_known = _own_addresses(hosts)
        try:
            for address in self.addresses if all_known else [_ALL_ADDRESSES]:
                self._listeners.append(socket.create_server((address, 0), backlog=3 * len(table.ranks) + 10))
                self._listeners[-1].setblocking(False)
                self._selector.register(self._listeners[-1], selectors.EVENT_READ)
        except OSError:
            self.close()
            raise

    def launcher_address(self, limit: float) -> LauncherAddress:
        """How ranks reach this launcher; `limit` is the silence limit."""
        ports = cycle(listener.getsockname()[1] for listener in self._listeners)
        return LauncherAddress(self._secret, limit, tuple(zip(self.addresses, ports, strict=False)))

    def read_from(self, processes: Sequence[Process]) -> None:
        """Collects what agents and mpiexec print, and serves the ranks of agents."""
        for process in processes:
            self._agents |= dict.fromkeys(process.ranks, process)
            for pipe, agent in ((process.popen.stdout, bool(process.ranks)), (process.popen.stderr, False)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, _Pipe(process, agent))
                self._open += 1

    @property
    def all_ended(self) -> bool:
        """Whether no rank is connected and no process prints anything any more."""
        return self._open == 0

    def poll(self) -> None:
        """Reads what has come; waits a moment if there is nothing."""
        ended: list[_Connection] = []
        for key, _ in self._selector.select(liveness.POLL):
            if key.fileobj in self._listeners:
                self._accept(key.fileobj)
            elif isinstance(key.data, _Pipe):
                self._read_pipe(key)
            elif key.data.socket.fileno() >= 0 and not self._read(key.data):  # not closed a moment ago
                ended.append(key.data)
        late = time.monotonic() - liveness.HELLO
        ended += [stranger for stranger in self._strangers if stranger.accepted < late and stranger not in ended]
        for connection in ended:  # after all messages, which may explain it
            self._end(connection)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):  # not a pipe
                key.fileobj.close()
        for listener in self._listeners:  # also one that could not be registered
            listener.close()
        self._selector.close()

    # ---- connections ------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except OSError:  # too many open files, no memory, or who connected is gone again
            if self._strangers:
                self._end(next(iter(self._strangers)))
            else:
                time.sleep(liveness.POLL)  # the listener stays readable
            return
        stranger = _Connection(accepted)
        try:
            accepted.setblocking(False)
            keep_alive(accepted)
            accepted.send(handshake.challenge_line(stranger.challenge))
            self._selector.register(accepted, selectors.EVENT_READ, stranger)
        except OSError:
            accepted.close()
            return
        self._strangers[stranger] = None
        if len(self._strangers) > liveness.STRANGERS:
            self._end(next(iter(self._strangers)))

    def _read(self, connection: _Connection) -> bool:
        """False at the end of the connection."""
        try:
            content = connection.socket.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError as error:
            if connection.stream in ("out", "err"):
                self.output_lost = f"output of {self._table.in_words([connection.rank])} was lost: {error.strerror}"
            return False
        if not content:
            return False
        if not connection.stream:
            connection.begun, newline, content = (connection.begun + content).partition(b"\n")
            if not newline:
                return len(connection.begun) < LONGEST_LINE
            if not self._welcome(connection):
                return False
        if connection.control is not None:
            return self._receive(connection, connection.control, content)
        if content:
            output = self.stderr if connection.stream == "err" else self.stdout
            output.write(connection.rank, content)
        return True

    def _receive(self, connection: _Connection, control: handshake.Control, content: bytes) -> bool:
        """Reads the lines of a control connection; False if one is not genuine, or is no message."""
        *lines, connection.begun = (connection.begun + content).split(b"\n")
        try:
            for line in lines:
                message = decode(control.open(line))
                if message is None or isinstance(message, Hello):
                    raise ConnectionError("a message can't be understood")
                self._table.receive(connection.rank, message)
        except ConnectionError as error:
            self._say(f"{self._table.in_words([connection.rank])}: {error}; connection closed")
            return False
        return len(connection.begun) < LONGEST_LINE

    def _welcome(self, connection: _Connection) -> bool:
        """Whether the line that a connection has begun with is the hello of a rank of this job."""
        hello = decode(connection.begun)
        if not isinstance(hello, Hello) or not handshake.is_proven(self._secret, connection.challenge, hello):
            return False
        fault = hello.fault(len(self._table.ranks))
        if not fault and hello.stream == "control" and self._table.ranks[hello.rank].pid:
            fault = f"rank {hello.rank} connected twice, the second time as process {hello.pid} on {hello.host}"
        if fault:
            self._say(fault)
            if hello.size != len(self._table.ranks):
                self._table.failed_code = self._table.failed_code or LOST
            return False
        try:
            connection.socket.send(handshake.welcome_line(self._secret, connection.challenge, hello))
        except OSError:
            return False
        del self._strangers[connection]
        connection.stream, connection.rank, connection.begun = hello.stream, hello.rank, b""
        if hello.stream == "in":
            feeder = threading.Thread(target=_feed, args=(connection.socket, self._stdin), daemon=True)
            try:
                feeder.start()
            except RuntimeError as error:
                self._say(f"rank {hello.rank} gets no stdin: {error}")
                self._table.failed_code = self._table.failed_code or LOST
                return False
            self._selector.unregister(connection.socket)
            return True
        self._open += 1
        if hello.stream == "control":
            seal = handshake.Seal(self._secret, connection.challenge, hello, handshake.LAUNCHER_SIDE)
            connection.control = handshake.Control(connection.socket, seal)
            self._table.connect(hello, connection.control)
        return True

    def _end(self, connection: _Connection) -> None:
        self._strangers.pop(connection, None)
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.socket)
        connection.socket.close()
        self._open -= bool(connection.stream)
        if connection.stream == "control":
            self._table.disconnect(connection.rank, expected=self.ending)

    def _say(self, sentence: str) -> None:
        printable = "".join(c if c.isprintable() else "?" for c in sentence)
        self.stderr.write(-1, f"dslide: error: {printable}\n".encode(errors="replace"))

    # ---- pipes ------------------------------------------------------------------------------------------------------

    def _read_pipe(self, key: selectors.SelectorKey) -> None:
        pipe: _Pipe = key.data
        try:
            content = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # as if it had ended: what depends on it has time limits
            content = b""
        *lines, rest = (pipe.begun + content).split(b"\n")
        for line in lines:
            if not (pipe.agent and self._serve(pipe.process, line)):
                self.printed.append(line)
        pipe.begun = rest[-_CHUNK:]
        if not content:
            self.printed.extend([rest] if rest else [])
            self._selector.unregister(key.fileobj)
            self._open -= 1
            if pipe.agent:
                self._table.agent_ended(pipe.process.ranks)

    def _serve(self, agent: Process, line: bytes) -> bool:
        """Does what a line of an agent says; False if it is something that was printed on the way."""
        try:
            kind, rank, *content = json.loads(line)
            if rank not in agent.ranks:
                return False
            if kind == "ended":
                self._table.exited(rank, *content)
            else:
                for to, text in self.pmi.answer(rank, *content):
                    self._agents[to].send(json.dumps([to, text]).encode() + b"\n")
        except (ValueError, TypeError):
            return False
        return True


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
