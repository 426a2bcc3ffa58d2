"""Exchanges between the ranks of a job: who is here, who sends what to whom, and who is to blame if it doesn't come.

Every exchange is the same thing: each rank sends one message to every rank and waits for one from each. Ranks post the
same exchanges in the same order, so messages need no addresses beyond a number, and whatever is missing has a name: the
exchange, the step, the rank. What carries the bytes is a `Transport`; a communicator of one rank has none.

A thread of its own moves bytes while the rank computes, and tells the others now and then that the rank is alive. A
message that is lost, doubled, damaged or out of turn, a rank that fails, leaves or falls silent: each ends in
`CommError` on everybody who waits, none in a hang.
"""

from __future__ import annotations

import json
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ..errors import CommError, PeerFailed, UserError

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

DEFAULT_LIMIT = 60.0  # seconds of silence after which a rank is given up
STUCK = 10  # a rank that is alive but sends nothing is given up after this many times as long
_HEADER = struct.Struct("<BIQ")  # kind, checksum of the exchange's name, number of the exchange
_CHECK = struct.Struct("<I")  # checksum of header and content
_DATA, _ALIVE, _FAILED, _BYE = range(4)
_POLL = 5e-5  # seconds between looks for a message that is waited for
_POLL_BUSY, _POLL_IDLE = 3e-4, 0.02  # and of the thread, with and without an exchange in flight
_FAREWELL = 0.5  # seconds in which the others must have taken the news of a failure


class Transport(Protocol):
    """Carries bytes between ranks; frames between two ranks arrive in the order in which they were sent."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def send(self, to: int, frame: bytes) -> None:
        """Begins to send; never waits."""

    def receive(self) -> list[tuple[int, Buffer]]:
        """What has arrived since the last call, with the rank it came from; never waits. Also moves on what is
        being sent."""

    def sending(self) -> bool:
        """Whether something is still on its way out."""


class Exchange:
    """One exchange in flight."""

    def __init__(self, comm: Communicator, name: str, number: int, own: Buffer):
        self.name, self.number, self._comm = name, number, comm
        self.step = comm.step
        self.arrived: dict[int, Buffer] = {comm.rank: own}
        self.begun = self.complete_at = time.perf_counter()

    def wait(self) -> list[Buffer]:
        """The messages of all ranks, in rank order. Raises CommError if one doesn't come."""
        return self._comm._wait(self)

    def __str__(self) -> str:
        return f'exchange "{self.name}" of step {self.step}'


class Communicator:
    """The ranks of a job, seen by one of them. `limit` is the silence, in seconds, after which a rank is given up."""

    def __init__(self, transport: Transport | None = None, limit: float = DEFAULT_LIMIT):
        self._transport = transport
        self.rank = 0 if transport is None else transport.rank
        self.size = 1 if transport is None else transport.size
        self.limit = limit
        self.step = 0  # of training, for messages; kept by the trainer
        self.bytes_sent = 0
        self.wait_seconds = 0.0  # in which this rank could do nothing but wait
        self.flight_seconds = 0.0  # from posting an exchange to its last arrival, summed over exchanges
        self._number = 0  # of the next exchange
        self._open: dict[int, Exchange] = {}
        self._early: dict[int, dict[int, Buffer]] = {}  # messages of exchanges that were not posted yet
        self._expected = [0] * self.size  # number of the next exchange from each rank
        self._heard = [time.monotonic()] * self.size  # when each rank last gave a sign of life
        self._gone: dict[int, str] = {}
        self._error: CommError | None = None
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        if transport is not None:
            self._thread = threading.Thread(target=self._run, name="dslide-comm", daemon=True)
            self._thread.start()

    # ---- exchanges ------------------------------------------------------------------------------------------------

    def post(self, name: str, outgoing: Sequence[Buffer]) -> Exchange:
        """Begins an exchange: outgoing[r] is for rank r. What is for this rank itself comes back as it is."""
        if len(outgoing) != self.size:
            raise ValueError(f"{len(outgoing)} messages for {self.size} ranks")
        with self._lock:
            exchange = Exchange(self, name, self._number, outgoing[self.rank])
            self._number += 1
            if self._transport is not None:
                if self._closed:
                    raise CommError(f"{exchange}: the communicator is closed")
                name_check = zlib.crc32(name.encode())
                for offset in range(1, self.size):  # everybody begins with another one
                    to = (self.rank + offset) % self.size
                    self._send(to, _DATA, name_check, exchange.number, outgoing[to])
                exchange.arrived.update(self._early.pop(exchange.number, {}))
                self._open[exchange.number] = exchange
                self._wake.set()
        return exchange

    def all_gather(self, name: str, content: Buffer) -> list[Buffer]:
        """What every rank gave, in rank order."""
        return self.post(name, [content] * self.size).wait()

    def gather_objects(self, name: str, value: Any) -> list[Any]:
        """What every rank gave, in rank order; anything JSON can hold."""
        if self.size == 1:
            return [value]
        return [json.loads(bytes(b)) for b in self.all_gather(name, json.dumps(value).encode())]

    def barrier(self, name: str) -> None:
        """Waits until every rank is here."""
        self.all_gather(name, b"")

    def together(self, what: str, work: Callable[[], T]) -> T:
        """Does something on every rank. If a rank can't, all of them raise its error, which names the rank."""
        problem, value = None, None
        try:
            value = work()
        except UserError as error:
            if self.size == 1:
                raise
            problem = [type(error).__name__, str(error)]
        outcomes = self.gather_objects(what, problem)
        failed = [rank for rank, outcome in enumerate(outcomes) if outcome is not None]
        if not failed:
            return value  # type: ignore[return-value]
        name, message = outcomes[failed[0]]
        if any(outcome != outcomes[0] for outcome in outcomes):
            message = f"{ranks_in_words(failed)}: {message}"
        kinds = {kind.__name__: kind for kind in UserError.__subclasses__()}
        error = kinds.get(name, UserError)(message)
        error.collective = True
        raise error

    @property
    def failure(self) -> CommError | None:
        """What has gone wrong in the job as far as this rank has heard, even if it waits for nothing."""
        return self._error

    def fail(self, message: str, code: int) -> None:
        """Tells the others that this rank ends with an error; waits a moment for them to take it."""
        if self._transport is None or self._closed:
            return
        with self._lock:
            content = json.dumps([message, code]).encode()
            for to in range(self.size):
                if to != self.rank:
                    self._send(to, _FAILED, 0, 0, content)
        self._flush()
        self._stop()

    def close(self) -> None:
        """Says goodbye; whoever waits for this rank afterwards is told so."""
        if self._transport is None or self._closed:
            return
        with self._lock:
            for to in range(self.size):
                if to != self.rank:
                    self._send(to, _BYE, 0, 0, b"")
        self._flush()
        self._stop()

    # ---- the inside -----------------------------------------------------------------------------------------------

    def _wait(self, exchange: Exchange) -> list[Buffer]:
        if self._transport is None:
            return [exchange.arrived[0]]
        begin, begin_clock = time.perf_counter(), time.monotonic()
        while True:
            with self._lock:
                if len(exchange.arrived) < self.size:
                    self._pump()
                if len(exchange.arrived) == self.size:
                    break
                if self._error is not None:
                    raise self._error
                self._check_missing(exchange, begin_clock)
            time.sleep(_POLL)
        end = time.perf_counter()
        with self._lock:
            self._open.pop(exchange.number, None)
        self.wait_seconds += end - begin
        self.flight_seconds += max(exchange.complete_at, begin) - exchange.begun
        return [exchange.arrived[rank] for rank in range(self.size)]

    def _check_missing(self, exchange: Exchange, begin: float) -> None:
        now = time.monotonic()
        missing = [rank for rank in range(self.size) if rank not in exchange.arrived]
        for rank in missing:
            if rank in self._gone:
                raise CommError(f"{exchange}: rank {rank} {self._gone[rank]}")
        silent = [rank for rank in missing if now - max(begin, self._heard[rank]) > self.limit]
        if silent:
            raise CommError(f"{exchange}: {ranks_in_words(silent)} silent for {self.limit:g} s; given up")
        if now - begin > STUCK * self.limit:
            raise CommError(
                f"{exchange}: {ranks_in_words(missing)} alive, but nothing sent for {STUCK * self.limit:g} s; given up"
            )

    def _send(self, to: int, kind: int, name_check: int, number: int, content: Buffer) -> None:
        assert self._transport is not None
        header = _HEADER.pack(kind, name_check, number)
        check = _CHECK.pack(zlib.crc32(content, zlib.crc32(header)))
        frame = b"".join((header, check, content))
        self._transport.send(to, frame)
        self.bytes_sent += len(frame)

    def _pump(self) -> None:
        """Takes in what has arrived. Called with the lock held."""
        assert self._transport is not None
        for source, frame in self._transport.receive():
            try:
                self._take(source, memoryview(frame))
            except CommError as error:
                self._error = self._error or error

    def _take(self, source: int, frame: memoryview) -> None:
        self._heard[source] = time.monotonic()
        start = _HEADER.size + _CHECK.size
        content = frame[start:]
        waited = self._open.get(self._expected[source])
        place = str(waited) if waited is not None else f"step {self.step}"
        if len(frame) < start or _CHECK.unpack_from(frame, _HEADER.size)[0] != zlib.crc32(
            content, zlib.crc32(frame[: _HEADER.size])
        ):
            raise CommError(f"{place}: a message from rank {source} is damaged")
        kind, name_check, number = _HEADER.unpack_from(frame)
        if kind == _FAILED:
            message, code = json.loads(bytes(content))
            self._gone[source] = "failed"
            raise PeerFailed(source, message, code)
        if kind == _BYE:
            self._gone[source] = "has ended"
        if kind != _DATA:
            return
        expected = self._expected[source]
        if number != expected:
            fault = "came twice" if number < expected else "was lost"
            raise CommError(f"{place}: a message from rank {source} {fault}")
        self._expected[source] += 1
        if waited is None:
            self._early.setdefault(number, {})[source] = content
            return
        if name_check != zlib.crc32(waited.name.encode()):
            raise CommError(f"{waited}: rank {source} is in another exchange; do all ranks run the same program?")
        waited.arrived[source] = content
        if len(waited.arrived) == self.size:
            waited.complete_at = time.perf_counter()

    def _run(self) -> None:
        """The thread: moves bytes and gives signs of life until the communicator is closed."""
        pause = min(1.0, self.limit / 10)
        told = time.monotonic()
        while not self._closed:
            with self._lock:
                if self._closed:
                    return
                self._pump()
                now = time.monotonic()
                if now - told > pause:
                    told = now
                    for to in range(self.size):
                        if to != self.rank and to not in self._gone:
                            self._send(to, _ALIVE, 0, 0, b"")
                busy = bool(self._open) or self._transport_busy()
            if busy:
                time.sleep(_POLL_BUSY)
            else:
                self._wake.clear()
                self._wake.wait(min(_POLL_IDLE, pause))

    def _transport_busy(self) -> bool:
        return self._transport is not None and self._transport.sending()

    def _flush(self) -> None:
        end = time.monotonic() + _FAREWELL
        while time.monotonic() < end:
            with self._lock:
                self._pump()
                if not self._transport_busy():
                    return
            time.sleep(_POLL)

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)


def solo() -> Communicator:
    """The communicator of a job with one rank."""
    return Communicator(None)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Like `rank 2` or `ranks 0, 3 and 5`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
