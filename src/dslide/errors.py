"""Errors that a user can see. Each message is one sentence that names what is wrong and what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

# Exit codes of the command line.
BUG, USER_ERROR, DIVERGED, LOST, INTERRUPTED, BROKEN_PIPE, TERMINATED = 1, 2, 3, 4, 130, 141, 143

LONGEST_MESSAGE = 1200  # characters; messages quote input of any length


class UserError(Exception):
    """Invalid input (file, option, value); the CLI prints it. The message is one printable line, whatever it quotes."""

    code = USER_ERROR  # with which the CLI exits
    collective = False  # raised alike on every rank, so that one rank reports it for all
    blamed: tuple[int, ...] = ()  # the ranks that caused it, if only some did

    def __init__(self, message: str):
        if len(message) > LONGEST_MESSAGE:
            half = LONGEST_MESSAGE // 2
            message = f"{message[:half]} ... {message[-half:]}"
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message))


E = TypeVar("E", bound=UserError)


def known_to_all(error: E) -> E:
    """Marks an error that every rank raises alike."""
    error.collective = True
    return error


@contextmanager
def raised_as(kind: type[UserError], where: object, *caught: type[Exception]) -> Iterator[None]:
    """Raises errors of the types `caught` as one of `kind`, with `where` before their message."""
    try:
        yield
    except caught as error:
        raise kind(f"{where}: {getattr(error, 'strerror', None) or error}") from None


class DataError(UserError, ValueError):
    """Input data that can't be used; the message names file, line and value."""


class ConfigError(UserError, ValueError):
    """An option that is unknown, of the wrong type, or out of range."""


class ModelError(UserError):
    """A model folder that is missing, incomplete, damaged or from a newer version."""


class MemoryNeeded(UserError):
    """A run that would need more memory than is available."""


class Diverged(ArithmeticError):
    """Training produced a number that is not finite; the message names layer, step and learning rate."""

    code = DIVERGED


class _Blamed(Exception):
    """An error that names the ranks that caused it."""

    def __init__(self, message: str, blamed: Sequence[int] = ()):
        super().__init__(message)
        self.blamed = tuple(blamed)


class Terminated(_Blamed):
    """SIGTERM on the ranks `blamed` stopped training, with everything saved; raised alike on every rank."""

    code = TERMINATED


class CommError(_Blamed):
    """A collective that can't be completed; the message names it, the step and the ranks `blamed`."""

    code = LOST


class PeerFailed(CommError):
    """Another rank failed and sent its error before it exited."""

    def __init__(self, rank: int, message: str, code: int):
        super().__init__(f"rank {rank} failed: {message}")
        self.rank, self.message, self.code = rank, message, code
