"""Collectives between the ranks of a job: who is here, who sends what to whom, and who is to blame if it doesn't come.

Every exchange is the same thing: each rank sends one message to every rank and waits for one from each. Ranks post the
same exchanges in the same order, so messages need no addresses, and whatever is missing has a name: the exchange, the
step, the rank. What carries the bytes is a `Transport`; a communicator of one rank has none.

A message travels in frames of up to `PIECE` bytes, numbered from 0 between each two ranks, with a checksum. Frames
between two ranks arrive in order, so the n-th whole message from a rank is its part of exchange n, and a number that is
too high or too low means that a piece was lost or came twice. About once a second every rank tells every other one
that it is alive, and how many pieces it has sent: so a loss is noticed even if nothing else comes. A rank that leaves
says so, and one that fails says why. Beside the exchanges, and without a place in their order, ranks can send each
other frames that no one waits for (`send_aside`): files travel in them while training goes on.

A thread of its own moves bytes while the rank computes, and sends the signs of life. While the rank waits, the waiting
caller moves the bytes, and the thread leaves them to it. A message that is lost, doubled, damaged or out of turn,
a rank that fails, leaves or falls silent: each ends in `CommError` on everybody who waits, none in a hang.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from dslide.comm.frames import Buffer, Frame, Kind, name_check, pack, unpack
from dslide.comm.outcomes import error_of_all, ranks_in_words
from dslide.comm.transport import Transport
from dslide.errors import CommError, PeerFailed, UserError

T = TypeVar("T")

DEFAULT_LIMIT = 60.0  # seconds of silence after which a rank is given up
STUCK = 10  # a rank that is alive but sends nothing is given up after this many times as long
PIECE = 1 << 20  # bytes; each piece is a sign of life, also where a whole message takes minutes
_EAGER = 2e-4  # seconds for which a waiting caller looks without a pause: even the shortest sleep takes half of it
_POLL, _POLL_MOST = 5e-5, 1e-3  # seconds between looks for a message, at first and after a while
_POLL_IDLE = 0.02  # seconds between looks of the thread while nothing is under way
_ASIDE_SECONDS = 0.3  # after something came or went aside, in which the thread looks more often: answers are awaited
_FAREWELL = 0.5  # seconds in which the others must have taken the news of a failure, or leave too


class Exchange:
    """One exchange in flight."""

    def __init__(self, comm: Communicator, name: str, number: int, own: bytes):
        self.name, self.number, self._comm = name, number, comm
        self.step = comm.step
        self.arrived: dict[int, Buffer] = {comm.rank: own}
        self.begun = self.complete_at = time.monotonic()
        self.counted = False  # whether its times are in the communicator's sums

    def wait(self) -> list[Buffer]:
        """The messages of all ranks, in rank order; the same again if called again. Raises CommError if one doesn't
        come."""
        return self._comm._wait(self)

    def __str__(self) -> str:
        return f'exchange "{self.name}" of step {self.step}'


class _Peer:
    """What this rank knows of another one."""

    def __init__(self) -> None:
        self.heard = self.moved = time.monotonic()  # when a frame last came, and when one that belongs to a message
        self.sent = self.taken = 0  # pieces, to and from it
        self.messages = 0  # whole ones from it, which is the number of the exchange its next one belongs to
        self.pieces: list[memoryview] = []  # of that next one
        self.fault = ""  # why nothing more that it sends can be used, apart from the news that it failed
        self.gone = False  # it takes nothing any more


class Communicator:
    """The ranks of a job, seen by one of them. `limit` is the silence, in seconds, after which a rank is given up; it
    must be about the same on all ranks. Used by one thread at a time."""

    def __init__(self, transport: Transport | None = None, limit: float = DEFAULT_LIMIT):
        self._transport = transport
        self.rank = 0 if transport is None else transport.rank
        self.size = 1 if transport is None else transport.size
        self.limit = limit
        self.step = 0  # of training, for messages; kept by the trainer
        self.bytes_sent = 0  # of exchanges, with headers; signs of life and what goes aside don't count
        self.wait_seconds = 0.0  # in which this rank could do nothing but wait
        self.flight_seconds = 0.0  # from posting an exchange to its last arrival, summed over exchanges
        self._number = 0  # of the next exchange
        self._open: dict[int, Exchange] = {}  # those that miss messages, oldest first
        self._early: dict[int, list[tuple[int, int, Buffer]]] = {}  # messages of exchanges that were not posted yet
        self._peers = {rank: _Peer() for rank in range(self.size) if rank != self.rank}
        self._error: CommError | None = None  # the first; there is no going on after it
        self._lock = threading.RLock()  # of all of the above, and of the transport
        self._wake = threading.Event()  # there is something to do for the thread
        self._waiting = False  # a caller waits and moves the bytes itself
        self._closed = False
        self._aside: Callable[[int, memoryview], None] | None = None  # takes what comes beside the exchanges
        self._aside_at = -_ASIDE_SECONDS  # when something last came or went there
        self._thread: threading.Thread | None = None
        if self.size > 1:
            self._thread = threading.Thread(target=self._run, name="dslide-comm", daemon=True)
            self._thread.start()

    # ---- exchanges ------------------------------------------------------------------------------------------------

    def post(self, name: str, outgoing: Sequence[Buffer]) -> Exchange:
        """Begins an exchange: outgoing[r] is for rank r, and what is for this rank itself comes back with the rest.
        Messages are copied: the caller may change its buffers at once."""
        exchange = self._post(name, outgoing)
        self._wake.set()
        return exchange

    def all_gather(self, name: str, content: Buffer) -> list[Buffer]:
        """What every rank gave, in rank order."""
        return self._post(name, [content] * self.size).wait()

    def gather_objects(self, name: str, value: Any) -> list[Any]:
        """What every rank gave, in rank order; anything JSON can hold, and as JSON gives it back (lists for tuples)."""
        return [json.loads(bytes(b)) for b in self.all_gather(name, json.dumps(value).encode())]

    def barrier(self, name: str) -> None:
        """Waits until every rank is here."""
        self.all_gather(name, b"")

    def together(self, what: str, work: Callable[[], T]) -> T:
        """Does something on every rank. If some can't, all of them raise the first one's error, with the messages of
        all that failed and their ranks (without ranks if it is the same everywhere)."""
        problem, value = None, None
        try:
            value = work()
        except UserError as error:
            problem = [type(error).__name__, str(error)]
        if failure := error_of_all(self.gather_objects(what, problem)):
            raise failure
        return value  # type: ignore[return-value]

    @property
    def exchanges(self) -> int:
        """How many were begun: a job in which nobody begins one stands still."""
        return self._number

    def take_asides(self, take: Callable[[int, memoryview], None] | None) -> None:
        """From now on what other ranks send aside goes to `take(rank, content)`, which is called with the lock held and
        must neither wait nor fail; with None it is dropped."""
        with self._lock:
            self._aside = take

    def send_aside(self, to: int, content: Buffer) -> None:
        """Sends something of at most `PIECE` bytes beside the exchanges; from any thread. CommError if the rank takes
        nothing any more."""
        with self._lock:
            if lost := self.lost(to):
                raise CommError(lost)
            self._send(self._place(), to, pack(Kind.ASIDE, "", self._peers[to].sent, content))
            self._aside_at = time.monotonic()
        self._wake.set()

    def lost(self, rank: int) -> str:
        """Why another rank can't be reached any more, as far as is known; nothing if it can."""
        peer = self._peers[rank]
        if self._closed:
            return "the communicator is closed"
        if self._error is not None:
            return str(self._error)
        if peer.fault or peer.gone:
            return peer.fault or f"rank {rank} has ended"
        silent = time.monotonic() - peer.heard > self.limit
        return f"rank {rank} silent for {self.limit:g} s" if silent else ""

    @property
    def failure(self) -> CommError | None:
        """What has gone wrong in the job as far as this rank has heard, even if it waits for nothing."""
        return self._error

    def fail(self, message: str, code: int) -> None:
        """Tells the others that this rank ends with an error; waits a moment for them to take it. If another rank's
        failure is the reason, that one's error is passed on."""
        cause = self._error if isinstance(self._error, PeerFailed) else PeerFailed(self.rank, message, code)
        self._leave(Kind.FAILED, json.dumps([cause.rank, cause.message, cause.code]).encode())

    def close(self) -> None:
        """Says goodbye when everything is sent; whoever waits for this rank afterwards is told so. Does nothing where
        there is only one rank."""
        self._leave(Kind.BYE, b"")

    # ---- sending; all that follows is called with the lock held, except where it takes it ---------------------------

    def _post(self, name: str, outgoing: Sequence[Buffer]) -> Exchange:
        if len(outgoing) != self.size:
            raise ValueError(f"{len(outgoing)} messages for {self.size} ranks")
        with self._lock:
            exchange = Exchange(self, name, self._number, bytes(outgoing[self.rank]))
            if self._closed:
                raise CommError(f"{exchange}: the communicator is closed")
            self._number += 1
            for offset in range(1, self.size):  # everybody begins with another one
                to = (self.rank + offset) % self.size
                if not self._peers[to].gone:
                    self._send_message(exchange, to, outgoing[to])
            if self.size > 1:
                self._open[exchange.number] = exchange
            for source, their_name, content in self._early.pop(exchange.number, []):
                self._deliver(exchange, source, their_name, content)
        return exchange

    def _send_message(self, exchange: Exchange, to: int, content: Buffer) -> None:
        view, peer = memoryview(content), self._peers[to]
        if view.nbytes > PIECE:
            view = view.cast("B")
        while True:
            last = view.nbytes <= PIECE
            kind, piece = (Kind.LAST, view) if last else (Kind.PIECE, view[:PIECE])
            self.bytes_sent += self._send(exchange, to, pack(kind, exchange.name, peer.sent, piece))
            peer.sent += 1
            if last:
                return
            view = view[PIECE:]

    def _send(self, place: object, to: int, frame: bytes) -> int:
        assert self._transport is not None
        try:
            self._transport.send(to, frame)
        except Exception as error:
            failure = CommError(f"{place}: nothing can be sent to rank {to}: {error}", [to])
            self._blame(failure)
            raise failure from error
        return len(frame)

    def _tell(self, kind: Kind, content: bytes) -> None:
        """Sends something to all other ranks that are still there, as far as that is possible. Those that have said
        goodbye wait for ours."""
        for to, peer in self._peers.items():
            if not peer.gone or kind == Kind.BYE:
                with suppress(CommError):
                    self._send(self._place(), to, pack(kind, "", peer.sent, content))

    def _sending(self) -> bool:
        return self._transport is not None and self._transport.sending()

    # ---- receiving ------------------------------------------------------------------------------------------------

    def _wait(self, exchange: Exchange) -> list[Buffer]:
        begin = patient_since = looked = time.monotonic()
        self._waiting = True
        try:
            while True:
                with self._lock:
                    if len(exchange.arrived) < self.size:
                        self._pump()
                    if len(exchange.arrived) == self.size:
                        break
                    now = time.monotonic()
                    if now - looked > self.limit / 2:  # this process itself stood still, and perhaps all did
                        patient_since = now
                    looked = now
                    self._check_missing(exchange, patient_since, now)
                    if self._error is not None:
                        raise self._error
                    quiet = now - max(begin, self._last_heard())
                if quiet < _EAGER:
                    os.sched_yield()
                else:
                    time.sleep(_pause(quiet))
        finally:
            self._waiting = False
            if self._open or self._sending():
                self._wake.set()
        if not exchange.counted:
            exchange.counted = True
            self.wait_seconds += time.monotonic() - begin
            self.flight_seconds += exchange.complete_at - exchange.begun
        return [exchange.arrived[rank] for rank in range(self.size)]

    def _check_missing(self, exchange: Exchange, begin: float, now: float) -> None:
        """Finds out whether the messages that an exchange misses, and that are waited for since `begin`, may come."""
        missing = {rank: peer for rank, peer in self._peers.items() if rank not in exchange.arrived}
        for rank, peer in missing.items():
            if peer.fault:
                self._blame(CommError(f"{exchange}: {peer.fault}", [rank]))
        silent = [rank for rank, peer in missing.items() if now - max(begin, peer.heard) > self.limit]
        if silent:
            fault = f"silent for {self.limit:g} s; given up"
            self._blame(CommError(f"{exchange}: {ranks_in_words(silent)} {fault}", silent))
        stuck = [rank for rank, peer in missing.items() if now - max(begin, peer.moved) > STUCK * self.limit]
        if stuck:
            fault = f"alive, but nothing sent for {STUCK * self.limit:g} s; given up"
            self._blame(CommError(f"{exchange}: {ranks_in_words(stuck)} {fault}", stuck))

    def _pump(self) -> None:
        """Takes in what has arrived."""
        if self._transport is None:
            return
        try:
            for source, frame in self._transport.receive():
                self._take(source, self._peers[source], unpack(frame))
        except Exception as error:
            self._blame(CommError(f"{self._place()}: nothing can be received: {error}"))

    def _take(self, source: int, peer: _Peer, frame: Frame | None) -> None:
        peer.heard = time.monotonic()
        if frame is None:
            peer.fault = peer.fault or f"a message from rank {source} is damaged"
            return
        peer.gone = peer.gone or frame.kind in (Kind.FAILED, Kind.BYE)
        if frame.kind == Kind.FAILED:
            self._blame(PeerFailed(*json.loads(bytes(frame.content))))
        elif peer.fault:
            return
        elif frame.number > peer.taken:
            peer.fault = f"a message from rank {source} was lost"
        elif frame.kind == Kind.BYE:
            peer.fault = f"rank {source} has ended"
        elif frame.kind == Kind.ALIVE:
            return
        elif frame.kind == Kind.ASIDE:
            self._aside_at = peer.heard
            if self._aside is not None:
                self._aside(source, frame.content)
        elif frame.number < peer.taken:
            peer.fault = f"a message from rank {source} came twice"
        else:
            self._take_piece(source, peer, frame)

    def _take_piece(self, source: int, peer: _Peer, frame: Frame) -> None:
        peer.taken += 1
        peer.moved = peer.heard
        peer.pieces.append(frame.content)
        if frame.kind == Kind.PIECE:
            return
        content = frame.content if len(peer.pieces) == 1 else memoryview(b"".join(peer.pieces))
        peer.pieces.clear()
        exchange = self._open.get(peer.messages)
        if exchange is None:
            self._early.setdefault(peer.messages, []).append((source, frame.name, content))
        else:
            self._deliver(exchange, source, frame.name, content)
        peer.messages += 1

    def _deliver(self, exchange: Exchange, source: int, their_name: int, content: Buffer) -> None:
        if their_name != name_check(exchange.name):
            fault = f"rank {source} is in another exchange; do all ranks run the same program?"
            self._blame(CommError(f"{exchange}: {fault}", [source]))
            return
        exchange.arrived[source] = content
        if len(exchange.arrived) == self.size:
            exchange.complete_at = time.monotonic()
            del self._open[exchange.number]

    def _blame(self, error: CommError) -> None:
        self._error = self._error or error

    def _place(self) -> str:
        """Where this rank is, for messages."""
        return str(next(iter(self._open.values()), f"step {self.step}"))

    def _last_heard(self) -> float:
        return max((peer.heard for peer in self._peers.values()), default=0.0)

    # ---- the thread, and the end ------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The thread: moves bytes and gives signs of life until the communicator is closed."""
        told = time.monotonic()
        while True:
            with self._lock:
                if self._closed:
                    return
                self._wake.clear()
                if not self._waiting:
                    self._pump()
                now, interval = time.monotonic(), min(1.0, self.limit / 10)
                if now - told >= interval:
                    told = now
                    self._tell(Kind.ALIVE, b"")
                pause = min(_POLL_IDLE, interval)
                if not self._waiting:
                    if self._open or self._sending():
                        pause = _pause(now - self._last_heard())
                    elif now - self._aside_at < _ASIDE_SECONDS:
                        pause = _POLL_MOST
            self._wake.wait(pause)

    def _leave(self, kind: Kind, content: bytes) -> None:
        if self.size == 1 or self._closed:
            return
        with self._lock:
            self._tell(kind, content)
        begin = time.monotonic()
        while True:
            with self._lock:
                self._pump()
                waited = time.monotonic() - begin
                alone = all(p.gone for p in self._peers.values())
                hopeless = kind == Kind.FAILED or self._error is not None or alone
                # Others who leave too are waited for a moment: MPI complains of goodbyes that nobody has taken.
                done = not self._sending() and (hopeless or waited > _FAREWELL)
                if done or waited > (_FAREWELL if hopeless else self.limit):
                    self._closed = True
                    break
            time.sleep(_pause(waited))
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)


def _pause(quiet: float) -> float:
    """Seconds until the next look for messages, after so many without one: short waits end at once, and long ones
    cost next to nothing."""
    return min(_POLL_MOST, max(_POLL, quiet / 8))


def solo() -> Communicator:
    """The communicator of a job with one rank."""
    return Communicator(None)
