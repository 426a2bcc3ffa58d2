"""The transport between ranks that something else than MPI has started: a TCP connection between each two of them.

Every rank listens on a port of its own; addresses and secrets reach all ranks on another way, such as a process group
of PyTorch. A rank connects to those before it, and names itself with the secret of the one that it connects to.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from dslide.comm.agreement import ranks_in_words
from dslide.comm.frames import OVERHEAD, PIECE, Buffer, Kind, pack
from dslide.errors import CommError

_LENGTH = struct.Struct("<I")  # of a frame, before it
_LONGEST = PIECE + OVERHEAD
_SECRET = 16  # bytes
_HELLO = struct.Struct(f"<{_SECRET}sI")  # the secret of the rank that is connected to, and the number of this one
_HELLO_SECONDS = 5.0  # for a rank that has connected to name itself


@dataclass(frozen=True)
class Address:
    """Where a rank listens, and what others have to know to connect."""

    host: str
    port: int
    secret: bytes


class Listener:
    """Listens for the ranks after this one, until all are connected."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self.secret = secrets.token_bytes(_SECRET)

    def connect(self, rank: int, addresses: Sequence[Address], limit: float) -> SocketTransport:
        """Connects all ranks, which have these addresses; CommError, with those that are missing, after `limit`
        seconds."""
        end = time.monotonic() + limit
        links: dict[int, socket.socket] = {}
        try:
            for to in range(rank):
                links[to] = _connected(rank, to, addresses[to], end, limit)
            waiting = set(range(rank + 1, len(addresses)))
            while waiting:
                self._socket.settimeout(max(0.01, end - time.monotonic()))
                try:
                    came, _ = self._socket.accept()
                except TimeoutError:
                    missing = sorted(waiting)
                    message = f"{ranks_in_words(missing)} did not connect to rank {rank} within {limit:g} s; given up"
                    raise CommError(message, missing) from None
                source = self._name_of(came)
                if source in waiting:
                    waiting.remove(source)
                    links[source] = came
                else:
                    came.close()
        except BaseException:
            for link in links.values():
                link.close()
            raise
        finally:
            self._socket.close()
        return SocketTransport(rank, len(addresses), links)

    def _name_of(self, came: socket.socket) -> int:
        """The rank at the other end; -1 if it is none: anybody may connect."""
        came.settimeout(_HELLO_SECONDS)
        with suppress(OSError):
            said = b""
            while len(said) < _HELLO.size and (more := came.recv(_HELLO.size - len(said))):
                said += more
            if len(said) == _HELLO.size:
                secret, source = _HELLO.unpack(said)
                if hmac.compare_digest(secret, self.secret):
                    return int(source)
        return -1


def _connected(rank: int, to: int, address: Address, end: float, limit: float) -> socket.socket:
    try:
        link = socket.create_connection((address.host, address.port), timeout=max(0.01, end - time.monotonic()))
        link.sendall(_HELLO.pack(address.secret, rank))
    except OSError as error:
        where = f"rank {to} at {address.host}, port {address.port}"
        reason = f"no answer within {limit:g} s" if isinstance(error, TimeoutError) else error.strerror or error
        raise CommError(f"rank {rank} can't connect to {where}: {reason}", [to]) from None
    return link


class _Link:
    """The connection to another rank."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = link
        self.outgoing: deque[memoryview] = deque()
        self.closed = False
        self._header = bytearray(_LENGTH.size)
        self._begin_frame()

    def _begin_frame(self) -> None:
        self._into, self._got, self._in_header = self._header, 0, True

    def send(self) -> None:
        """Sends what the system takes."""
        while self.outgoing:
            try:
                sent = self.socket.send(self.outgoing[0])
            except BlockingIOError:
                return
            except OSError:  # what the rank still said is received
                self.outgoing.clear()
                return
            if sent < len(self.outgoing[0]):
                self.outgoing[0] = self.outgoing[0][sent:]
            else:
                self.outgoing.popleft()

    def receive(self) -> list[Buffer]:
        """The frames that have arrived; sets `closed` if the rank has closed its end."""
        frames: list[Buffer] = []
        while not self.closed:
            if self._got < len(self._into):
                try:
                    count = self.socket.recv_into(memoryview(self._into)[self._got :])
                except BlockingIOError:
                    break
                except OSError:
                    count = 0
                self.closed = count == 0
                self._got += count
                continue
            if self._in_header:
                (length,) = _LENGTH.unpack(self._header)
                if length > _LONGEST:
                    raise OSError(f"a frame has {length} bytes, expected at most {_LONGEST}")
                self._into, self._got, self._in_header = bytearray(length), 0, False
            else:
                frames.append(self._into)
                self._begin_frame()
        return frames


class SocketTransport:
    """Bytes over a TCP connection to each other rank."""

    def __init__(self, rank: int, size: int, connections: dict[int, socket.socket]) -> None:
        self.rank, self.size = rank, size
        self._links = {other: _Link(connection) for other, connection in connections.items()}

    def send(self, to: int, frame: bytes) -> None:
        link = self._links[to]
        link.outgoing += (memoryview(_LENGTH.pack(len(frame))), memoryview(frame))
        link.send()

    def receive(self) -> list[tuple[int, Buffer]]:
        arrived: list[tuple[int, Buffer]] = []
        for source, link in self._links.items():
            link.send()
            if not link.closed:
                arrived += [(source, frame) for frame in link.receive()]
                if link.closed:  # a process that was killed did not say so itself
                    arrived.append((source, pack(Kind.BYE, "", 0, b"")))
        return arrived

    def sending(self) -> bool:
        return any(link.outgoing for link in self._links.values())
