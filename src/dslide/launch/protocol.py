"""What a launcher and its ranks send each other.

A rank learns from the variable `LAUNCHER` where its launcher listens, and opens one connection for each stream, which
begins with a `Hello`: `control`, `out`, `err` and, for rank 0, `in`. The last three carry what the rank prints and
reads. On `control` the launcher sends `WELCOME`, `HEARTBEAT` and `INTERRUPT`, and the rank one message a line, as JSON:
`Progress` as its heartbeat, `Failure` if it fails for a reason it knows, and `Exit` as the last one.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass

LAUNCHER = "DSLIDE_LAUNCHER"  # variable with a LauncherAddress
WELCOME, INTERRUPT, HEARTBEAT = b"welcome\n", b"interrupt\n", b"heartbeat\n"


@dataclass(frozen=True)
class LauncherAddress:
    """How a rank reaches its launcher."""

    token: str  # that the rank must present
    limit: float  # silence limit in seconds, after which a rank gives its launcher up
    places: tuple[tuple[str, int], ...]  # addresses and ports to try in order

    def __str__(self) -> str:
        """Like `a1b2c3 60 10.0.0.7:32801,alpha:32801`."""
        return f"{self.token} {self.limit:g} {','.join(f'{address}:{port}' for address, port in self.places)}"

    @classmethod
    def parse(cls, text: str) -> LauncherAddress:
        token, limit, places = text.split(" ")
        pairs = (place.rpartition(":") for place in places.split(","))
        return cls(token, float(limit), tuple((address, int(port)) for address, _, port in pairs))


@dataclass(frozen=True)
class Hello:
    """The first line on a connection: who opens it and what for."""

    token: str
    stream: str
    rank: int
    size: int  # ranks that there are, as the rank sees it
    host: str
    pid: int


@dataclass(frozen=True)
class Progress:
    """The heartbeat of a rank."""

    step: int
    exchanges: int  # begun so far


@dataclass(frozen=True)
class Failure:
    """Why a rank fails; what it has printed on stderr too."""

    sentence: str


@dataclass(frozen=True)
class Exit:
    """The end of a rank, after everything it printed."""

    code: int
    blamed: list[int]  # ranks that caused it


Message = Hello | Progress | Failure | Exit
_MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in (Hello, Progress, Failure, Exit)}


def encode(message: Message) -> bytes:
    """A message as one line."""
    return json.dumps([type(message).__name__, asdict(message)]).encode() + b"\n"


def decode(line: bytes) -> Message | None:
    """The message of a line; None if it is none: anybody may connect to the launcher's port."""
    try:
        name, fields = json.loads(line)
        return _MESSAGES[name](**fields)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def keep_alive(connection: socket.socket) -> None:
    """Lets TCP end a connection to a host that is gone, and keeps idle ones open in firewalls on the way."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
