"""Round trip and bandwidth between the ranks of a job, measured with the exchanges that training uses.

Every exchange is one of all ranks, so a pair is measured while the others are passive: those post their empty messages
of all the pair's exchanges at once, and only the pair waits for each exchange before the next. The times include the
work of the communicator (copies, checksums, polling), as in training.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from dslide.comm import Communicator

ROUND_TRIPS = 9  # of small messages for each pair
SIZES = [1 << power for power in range(16, 25, 2)]  # of messages that measure bandwidth: 64 KB, 4 times that, .., 16 MB
ENOUGH = 0.05  # seconds; a message that takes so long is the last: on links that are not very slow it takes at most 0.2
ALL_AT_ONCE_BYTES = 1 << 16
ALL_AT_ONCE_SECONDS, ALL_AT_ONCE_ROUNDS = 1.0, (3, 20)  # about so long, within so many rounds


@dataclass(frozen=True)
class Pair:
    """The link between two ranks."""

    round_trip: float  # seconds, the median of small messages
    forth: float  # bytes per second from the first to the second rank, and
    back: float  # from the second to the first


@dataclass(frozen=True)
class AllAtOnce:
    """All-gathers, in which every rank sends the same content to every other one."""

    empty_seconds: float  # without content
    seconds: float  # with it
    bytes_sent: int  # by each rank in one of them: the content, once to each of the others

    @property
    def bandwidth(self) -> float:
        """Bytes per second that each rank sends, and receives."""
        return self.bytes_sent / self.seconds

    def time_for(self, bytes_sent: int, rounds: int) -> float:
        """Seconds for every rank to send so many bytes, in so many exchanges of which each waits for the one before."""
        per_byte = max(0.0, self.seconds - self.empty_seconds) / self.bytes_sent
        return rounds * self.empty_seconds + bytes_sent * per_byte


def measure_pairs(comm: Communicator, seconds: float = 20.0) -> dict[tuple[int, int], Pair]:
    """Measures all pairs of ranks one after the other, neighbours first; pairs that don't fit in the time are left out.
    Every rank gets the same result."""
    begin, own = time.monotonic(), []
    content = memoryview(os.urandom(SIZES[-1]))  # random: some networks compress
    for pair in pairs(comm.size):
        if comm.gather_objects("next pair of ranks", time.monotonic() - begin > seconds)[0]:
            break
        if comm.rank in pair:
            own.append([*pair, *_measure(comm, pair, content)])
        else:
            _take_part(comm)
    seen = [{(one, other): rest for one, other, *rest in part} for part in comm.gather_objects("pairs of ranks", own)]
    found = {}
    for one, other in (pair for rank, part in enumerate(seen) for pair in part if pair[0] == rank):
        (trip, forth), (trip_back, back) = seen[one][one, other], seen[other][one, other]
        found[one, other] = Pair((trip + trip_back) / 2, forth, back)
    return found


def pairs(size: int) -> Iterator[tuple[int, int]]:
    """Every two of so many ranks, the lower first: the ring of neighbours, then those two apart, and so on."""
    for distance in range(1, size // 2 + 1):
        for first in range(size):
            second = (first + distance) % size
            if 2 * distance < size or first < second:
                yield min(first, second), max(first, second)


def measure_all_at_once(comm: Communicator) -> AllAtOnce:
    """All ranks send to all at the same time, as in training. Every rank gets the same result."""
    empty, full = (_all_gather_seconds(comm, content) for content in (b"", os.urandom(ALL_AT_ONCE_BYTES)))
    return AllAtOnce(empty, full, ALL_AT_ONCE_BYTES * (comm.size - 1))


def _measure(comm: Communicator, pair: tuple[int, int], content: memoryview) -> tuple[float, float]:
    """The round trip, and the bandwidth from this rank, one of the pair, to the other."""
    partner = pair[1] if comm.rank == pair[0] else pair[0]
    round_trip, speed = statistics.median(_round_trip(comm, partner, b"") for _ in range(ROUND_TRIPS)), 0.0
    for sender in pair:
        sends = comm.rank == sender
        for size in SIZES:
            seconds = _round_trip(comm, partner, content[:size] if sends else b"") - round_trip
            if sends:
                speed, sends = size / max(seconds, 1e-6), seconds < ENOUGH
    return round_trip, speed


def _round_trip(comm: Communicator, partner: int, content: bytes | memoryview) -> float:
    """Seconds from sending content to the partner's empty answer. The partner does the same."""
    begin = time.perf_counter()
    comm.post("there", [content if rank == partner else b"" for rank in range(comm.size)]).wait()
    comm.all_gather("and back", b"")
    return time.perf_counter() - begin


def _take_part(comm: Communicator) -> None:
    """The part of all other ranks while a pair is measured: posts everything at once, so as not to delay it."""
    for _ in range(ROUND_TRIPS + 2 * len(SIZES)):
        comm.post("there", [b""] * comm.size)
        last = comm.post("and back", [b""] * comm.size)
    last.wait()  # messages of a rank arrive in order, so the others are complete by then


def _all_gather_seconds(comm: Communicator, content: bytes) -> float:
    def once() -> float:
        begin = time.perf_counter()
        comm.all_gather("all at once", content)
        return time.perf_counter() - begin

    once()  # the first is often slow
    least, most = ALL_AT_ONCE_ROUNDS
    rounds = comm.gather_objects("rounds", min(most, max(least, round(ALL_AT_ONCE_SECONDS / max(once(), 1e-6)))))[0]
    times = comm.gather_objects("all at once", statistics.median([once() for _ in range(rounds)]))
    return float(max(times))
