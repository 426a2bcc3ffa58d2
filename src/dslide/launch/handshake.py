"""How a rank and its launcher prove to each other that they know the job's secret, which never crosses the network, and
how the lines of a control connection are sealed.

The launcher begins each connection with a `challenge` line, a random number. The rank answers with a hello
(protocol.py) that has a random number of its own and a code, an HMAC-SHA-256 of both numbers and all fields; the
launcher answers with `welcome` and a code of the same, which only it can know. On a control connection, both then
derive a key from secret and numbers, and put before each line a code of its sender, its count and itself: a line that
is forged, changed, repeated, left out or sent back ends the connection.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import threading
from dataclasses import asdict, replace

from dslide.launch.protocol import Hello

LAUNCHER_SIDE, RANK_SIDE = "launcher", "rank"
_CHALLENGE, _WELCOME = b"challenge ", b"welcome "
CHALLENGE_BYTES = len(_CHALLENGE) + 2 * 16 + 1
WELCOME_BYTES = len(_WELCOME) + 2 * 32 + 1


def new_number() -> str:
    """A random number of 128 bits, in hexadecimal."""
    return secrets.token_hex(16)


def challenge_line(number: str) -> bytes:
    return _CHALLENGE + number.encode() + b"\n"


def challenge_of(line: bytes) -> str:
    """The number of a challenge; ConnectionError if it is none."""
    if len(line) != CHALLENGE_BYTES or not line.startswith(_CHALLENGE):
        raise ConnectionError("no challenge from a launcher")
    return line[len(_CHALLENGE) : -1].decode(errors="replace")


def proven(secret: str, challenge: str, hello: Hello) -> Hello:
    """A hello with its proof."""
    return replace(hello, proof=_code(secret, RANK_SIDE, challenge, _fields(hello)))


def is_proven(secret: str, challenge: str, hello: Hello) -> bool:
    """Whether the sender of a hello knows the secret, and answers this challenge."""
    return hmac.compare_digest(
        hello.proof.encode(errors="replace"), _code(secret, RANK_SIDE, challenge, _fields(hello)).encode()
    )


def welcome_line(secret: str, challenge: str, hello: Hello) -> bytes:
    """The launcher's own proof, as answer to a hello."""
    return _WELCOME + _code(secret, LAUNCHER_SIDE, challenge, _fields(hello)).encode() + b"\n"


def _fields(hello: Hello) -> dict[str, object]:
    return asdict(replace(hello, proof=""))


def _code(secret: str, *content: object) -> str:
    return hmac.new(secret.encode(), json.dumps(content).encode(), hashlib.sha256).hexdigest()


class Seal:
    """The seal on the lines of one connection, as seen from one side: `close` seals those that this side sends, `open`
    checks those of the other."""

    def __init__(self, secret: str, challenge: str, hello: Hello, side: str):
        self._key = _code(secret, "key", challenge, _fields(hello))
        self._sender, self._other = side, RANK_SIDE if side == LAUNCHER_SIDE else LAUNCHER_SIDE
        self.sent = self.received = 0  # lines

    def close(self, line: bytes) -> bytes:
        return _code(self._key, self._sender, self.sent, line.decode()).encode() + b" " + line + b"\n"

    def open(self, sealed: bytes) -> bytes:
        """The line; ConnectionError if it is not the next one of the other side."""
        code, _, line = sealed.partition(b" ")
        expected = _code(self._key, self._other, self.received, line.decode(errors="replace"))
        if not hmac.compare_digest(code, expected.encode()):
            raise ConnectionError("a message could not be authenticated")
        self.received += 1
        return line


class Control:
    """A control connection: a socket and its seal. Several threads may send."""

    def __init__(self, connection: socket.socket, seal: Seal):
        self._socket, self._seal, self._lock = connection, seal, threading.Lock()

    def send(self, line: bytes) -> None:
        """Sends a line, or nothing of it: OSError then."""
        with self._lock:
            sealed = self._seal.close(line)
            if self._socket.send(sealed) < len(sealed):
                self._socket.shutdown(socket.SHUT_RDWR)  # what follows could not be understood
                raise ConnectionError("the other side reads nothing any more")
            self._seal.sent += 1

    def open(self, sealed: bytes) -> bytes:
        return self._seal.open(sealed)

    def shut(self) -> None:
        """Tells the other side that nothing will follow."""
        self._socket.shutdown(socket.SHUT_WR)
