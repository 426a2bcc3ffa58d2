"""What can be set of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from dslide.errors import ConfigError


@dataclass(frozen=True)
class ServeOptions:
    """The options of a server; ConfigError if they are out of range."""

    model: str  # folder of a run or of a model
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1  # processes
    threads: int = 0  # of each worker; 0: the cores divided by the workers
    token: str | None = None  # that requests must have, as "Authorization: Bearer TOKEN"
    approximate: bool | None = None  # None: if the model has a label prior, beside which it finds nearly all
    k: int = 5  # labels for a row if the request doesn't say
    most_k: int = 100
    most_rows: int = 1000  # in one request
    most_bytes: int = 4 << 20  # of a request's body
    batch_rows: int = 64  # predicted together, if as many wait
    waiting_rows: int = 4000  # at most; requests beyond are refused with 503
    timeout: float = 10.0  # seconds that a client may take to send a request
    reload: float = 10.0  # seconds between looks for a newer checkpoint; 0: only when asked to
    uri_prefix: str = ""  # put before label names, to make URIs of them

    def __post_init__(self) -> None:
        for name, low, high in (
            ("port", 0, 65535), ("workers", 1, 256), ("threads", 0, 1024), ("k", 1, self.most_k), ("most_k", 1, 10_000),
            ("most_rows", 1, 100_000), ("most_bytes", 1, 1 << 30), ("batch_rows", 1, 4096),
            ("waiting_rows", 1, 1 << 20), ("timeout", 0.1, 3600), ("reload", 0, 86400),
        ):  # fmt: skip
            if not low <= (value := getattr(self, name)) <= high:
                raise ConfigError(f"{name}: expected {low} to {high}, not {value}")
        if self.token is not None and (
            len(self.token) < 16 or not self.token.isascii() or not self.token.isprintable()
        ):
            raise ConfigError("token: expected at least 16 printable ASCII characters")
        if self.token is None and not _is_loopback(self.host):
            raise ConfigError(
                f"host: {self.host} can be reached from other machines; give a token that requests must have"
            )


def read_token(path: str | Path) -> str:
    """The token in the first line of a file."""
    try:
        return Path(path).read_text("utf-8", "replace").split("\n", 1)[0].strip()
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
