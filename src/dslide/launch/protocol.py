"""What a launcher and its ranks send each other.

A rank learns where its launcher listens, and the job's secret, where the variable `LAUNCHER` says. It opens one
connection for each stream, which begins with proofs that both know the secret (handshake.py): `control`, `out`, `err`
and, for rank 0, `in`. The last three carry what the rank prints and reads. On `control` the launcher sends `HEARTBEAT`
and `INTERRUPT`, and the rank one message a line, as JSON: `Progress` as its heartbeat, `Failure` if it fails for a
reason it knows, and `Exit` as the last one.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

LAUNCHER = "DSLIDE_LAUNCHER"  # variable that says where a rank finds its LauncherAddress, which is secret
INTERRUPT, HEARTBEAT = b"interrupt", b"heartbeat"
STREAMS = ("control", "out", "err", "in")
LONGEST_LINE = 1 << 16  # bytes


@dataclass(frozen=True)
class LauncherAddress:
    """How a rank reaches its launcher."""

    secret: str  # of the job
    limit: float  # silence limit in seconds, after which a rank gives its launcher up
    places: tuple[tuple[str, int], ...]  # addresses and ports to try in order

    def __str__(self) -> str:
        """Like `a1b2c3 60 10.0.0.7:32801,alpha:32801`."""
        return f"{self.secret} {self.limit:g} {','.join(f'{address}:{port}' for address, port in self.places)}"

    @classmethod
    def parse(cls, text: str) -> LauncherAddress:
        secret, limit, places = text.split(" ")
        pairs = (place.rpartition(":") for place in places.split(","))
        return cls(secret, float(limit), tuple((address, int(port)) for address, _, port in pairs))

    @classmethod
    def take(cls, place: str, rank: int) -> LauncherAddress:
        """The address for a rank, where `LAUNCHER` says: in an inherited pipe, like `fd 5`, or in files of all ranks,
        like `/tmp/dslide-a1b2` for `/tmp/dslide-a1b2-0`. Nobody else can read it afterwards."""
        if place.startswith("fd "):
            with open(int(place[3:]), encoding="utf-8") as pipe:
                return cls.parse(pipe.read())
        path = f"{place}-{rank}"
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as file:
            with suppress(OSError):
                os.unlink(path)
            return cls.parse(file.read())


@dataclass(frozen=True)
class Hello:
    """The first line on a connection: who opens it and what for."""

    stream: str
    rank: int
    size: int  # ranks that there are, as the rank sees it
    host: str
    pid: int
    number: str  # random
    proof: str = ""  # that the rank knows the secret

    def fault(self, size: int) -> str:
        """What is wrong with the hello of a rank of a job of this size; empty if nothing is."""
        if self.size != size:
            return f"{size} ranks were to be started, but a rank reports {self.size}"
        if self.stream not in STREAMS or not 0 <= self.rank < size or self.pid <= 0:
            return f"rank {self.rank} of {size} wants stream {self.stream!r} as process {self.pid}; connection closed"
        return ""


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
    """A message as one line, without its end."""
    return json.dumps([type(message).__name__, asdict(message)]).encode()


def decode(line: bytes) -> Message | None:
    """The message of a line; None if it is none, or a field has another type than it should."""
    try:
        name, fields = json.loads(line)
        message = _MESSAGES[name](**fields)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return message if all(map(_is_typed, asdict(message).values(), type(message).__annotations__.values())) else None


def _is_typed(value: Any, annotation: str) -> bool:
    match annotation:
        case "int":
            return type(value) is int and 0 <= value < 1 << 63
        case "str":
            return isinstance(value, str)
        case _:
            return isinstance(value, list) and all(_is_typed(item, "int") for item in value)


def keep_alive(connection: socket.socket) -> None:
    """Lets TCP end a connection to a host that is gone, and keeps idle ones open in firewalls on the way."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
