"""What a launcher knows of its ranks: where they are, how far, how they ended, and who is to blame if they failed."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dslide.comm import ranks_in_words
from dslide.comm.liveness import STUCK

STUCK_AT_FIRST = 60  # before the first step, when data is read, a job may stand still this many times the limit
_MARGIN = 5.0  # seconds that ranks get to notice the silence of another one themselves, and to say more of it
_MPI_SECONDS = 130.0  # that MPI may take to start, when no thread of a rank can run


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    code: int
    reason: str = ""  # in words, if it failed
    ranks: tuple[int, ...] = ()  # to blame
    hosts: tuple[str, ...] = ()  # of these ranks, as in the host file
    step: int = 0  # the last that was heard of; 0: none was begun
    by_user: bool = False  # ended by Ctrl-C or SIGTERM here


@dataclass
class Rank:
    """What is known of a rank."""

    listed: str  # host, as in the host file
    host: str  # as it calls itself
    control: socket.socket | None = None
    pid: int = 0
    code: int | None = None
    blames: tuple[int, ...] = ()
    heard: float = 0.0
    progress: tuple[int, int] = (0, 0)  # step, exchanges begun

    @property
    def start_seconds(self) -> float:
        """For which it may be silent, since MPI has not started."""
        return _MPI_SECONDS if self.progress == (0, 0) else 0.0

    def name(self, number: int) -> str:
        return f"rank {number} ({self.host})" if self.host else f"rank {number}"


class RankTable:
    """The ranks of a job. `limit` is the silence in seconds after which one is given up."""

    def __init__(self, listed: Sequence[str], limit: float):
        self.ranks = [Rank(host, host) for host in listed]
        self._limit = limit
        self._moved = self._looked = time.monotonic()

    @property
    def step(self) -> int:
        """The furthest that was heard of."""
        return max(rank.progress[0] for rank in self.ranks)

    def take(self, number: int, line: bytes) -> int | None:
        """What a rank says of itself; its exit code if this is its end."""
        rank, (kind, *rest) = self.ranks[number], line.split()
        numbers = [int(word) for word in rest]
        rank.heard = time.monotonic()
        if kind == b"alive":
            progress = numbers[0], numbers[1]
            if progress > rank.progress:
                rank.progress, self._moved = progress, rank.heard
            return None
        rank.code, rank.blames = numbers[0], tuple(numbers[1:])
        return rank.code

    def missing(self) -> list[int]:
        """Ranks that have not begun."""
        return [number for number, rank in enumerate(self.ranks) if rank.pid == 0]

    def in_words(self, ranks: Sequence[int]) -> str:
        """Like `ranks 1 and 2 (beta, gamma)`."""
        hosts = sorted({self.ranks[number].host for number in ranks} - {""})
        return ranks_in_words(ranks) + (f" ({', '.join(hosts)})" if hosts else "")

    def standstill(self) -> tuple[str, list[int]] | None:
        """What is wrong, and with whom, if ranks have been silent for too long or none gets any further."""
        now = time.monotonic()
        if now - self._looked > self._limit / 2:  # this process itself stood still: what others said is still to come
            self._moved = now
            for rank in self.ranks:
                rank.heard = now
        self._looked = now
        limit = self._limit + _MARGIN
        at_work = [n for n, rank in enumerate(self.ranks) if rank.control is not None and rank.code is None]
        silent = [n for n in at_work if now - self.ranks[n].heard > max(limit, self.ranks[n].start_seconds)]
        if silent:
            return f"{self.in_words(silent)} gave no sign of life for {limit:g} s; given up", silent
        limit = self._limit * (STUCK if self.step else STUCK_AT_FIRST) + _MARGIN
        if len(self.ranks) > 1 and at_work and now - self._moved > limit:  # a single rank waits for nobody
            return f"no rank got any further for {limit:g} s; given up", []
        return None

    def blamed(self) -> list[int]:
        """Those that most of the ranks that have ended blame."""
        votes = Counter(number for rank in self.ranks for number in rank.blames if number < len(self.ranks))
        return sorted(number for number, count in votes.items() if count == max(votes.values()))

    def outcome(self, code: int, reason: str, blamed: Sequence[int], by_user: bool) -> Outcome:
        hosts = dict.fromkeys(self.ranks[number].listed for number in blamed)
        return Outcome(code, reason, tuple(blamed), tuple(host for host in hosts if host), self.step, by_user)
