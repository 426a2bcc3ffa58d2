"""Ranks as threads of one process, for tests, with faults on request."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from dslide.comm import Communicator
from dslide.comm.frames import Kind, unpack
from dslide.errors import PeerFailed


class Fault(Enum):
    """What can go wrong with a piece of a message, or from it on."""

    DROP = auto()  # it never arrives
    DELAY = auto()  # it, and what is behind it, arrives late
    DUPLICATE = auto()  # it arrives twice
    CORRUPT = auto()  # one bit is wrong
    TRUNCATE = auto()  # its last byte is missing
    FAIL = auto()  # sending it raises an error
    SILENT = auto()  # from here on the rank sends nothing
    KILL = auto()  # from here on the rank sends and receives nothing


@dataclass(frozen=True)
class Injection:
    """A fault of a rank's n-th piece to another rank (which is exchange n as long as messages have one piece)."""

    fault: Fault
    rank: int
    piece: int
    to: int | None = None  # None: to everybody
    seconds: float = 0.0  # of a delay
    bit: int = 0  # that is wrong in a corrupt frame, modulo its length


Wires = list[list[deque[tuple[float, bytes]]]]  # [from][to], frames and the times before which they don't arrive


class InProcess:
    """The transport of one rank."""

    def __init__(self, rank: int, links: Wires, injections: Sequence[Injection] = ()):
        self.rank, self.size, self._links = rank, len(links), links
        self._injections = [i for i in injections if i.rank == rank]
        self._silent: set[int] = set()  # ranks that get nothing any more
        self._dead = False

    def send(self, to: int, frame: bytes) -> None:
        said = unpack(frame)
        assert said is not None
        due, copies = 0.0, 1
        for injection in self._injections:
            is_piece = said.kind in (Kind.PIECE, Kind.LAST)
            if not is_piece or said.number != injection.piece or injection.to not in (None, to):
                continue
            match injection.fault:
                case Fault.DROP:
                    copies = 0
                case Fault.DELAY:
                    due = time.monotonic() + injection.seconds
                case Fault.DUPLICATE:
                    copies = 2
                case Fault.CORRUPT:
                    byte, bit = divmod(injection.bit % (8 * len(frame)), 8)
                    frame = frame[:byte] + bytes([frame[byte] ^ 1 << bit]) + frame[byte + 1 :]
                case Fault.TRUNCATE:
                    frame = frame[:-1]
                case Fault.FAIL:
                    raise OSError("the cable is cut")
                case Fault.SILENT:
                    self._silent |= {injection.to} if injection.to is not None else set(range(self.size))
                case Fault.KILL:
                    self._dead = True
        if not self._dead and to not in self._silent:
            self._links[self.rank][to].extend([(due, frame)] * copies)

    def receive(self) -> list[tuple[int, bytes]]:
        arrived: list[tuple[int, bytes]] = []
        for source in range(self.size):
            link = self._links[source][self.rank]
            while not self._dead and link and link[0][0] <= time.monotonic():
                arrived.append((source, link.popleft()[1]))
        return arrived

    def sending(self) -> bool:
        return False


def run_ranks(
    size: int, work: Callable[[Communicator], Any], limit: float = 20.0, injections: Sequence[Injection] = ()
) -> list[Any]:
    """Runs `work(comm)` on every rank; returns what each returned. The first error is raised."""
    outcomes = rank_outcomes(size, work, limit, injections)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for error in [e for e in errors if not isinstance(e, PeerFailed)] or errors:
        raise error
    return outcomes


def rank_outcomes(
    size: int, work: Callable[[Communicator], Any], limit: float = 20.0, injections: Sequence[Injection] = ()
) -> list[Any]:
    """What `work(comm)` returned on every rank, or the error it raised there."""
    links: Wires = [[deque() for _ in range(size)] for _ in range(size)]
    outcomes: list[Any] = [None] * size

    def run(rank: int) -> None:
        comm = Communicator(InProcess(rank, links, injections) if size > 1 else None, limit)
        try:
            outcomes[rank] = work(comm)
        except BaseException as error:
            outcomes[rank] = error
            comm.fail(f"{type(error).__name__}: {error}", 1)
        finally:
            comm.close()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    return outcomes
