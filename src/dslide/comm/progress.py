"""The progress of exchanges: frames to and from the other ranks, moved by a thread while this rank computes.

Every exchange is the same thing: each rank sends one message to every rank and waits for one from each. Ranks post the
same exchanges in the same order, so messages need no addresses, and one that is missing can be named: by exchange, step
and rank. A `Transport` carries the bytes.

A message travels in frames of up to `PIECE` bytes, numbered from 0 between each two ranks, with a checksum. Frames
between two ranks arrive in order, so the n-th complete message from a rank belongs to exchange n, and a number that is
too high or too low means that a piece was lost or duplicated. About once a second every rank sends every other one a
heartbeat with the number of pieces sent so far: so a loss is noticed even if no other message follows. A rank that
leaves or fails sends a frame that says so.

The thread moves bytes while the rank computes, and sends heartbeats. While the rank waits, the waiting caller moves the
bytes instead of the thread. The limits are in liveness.py.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress

from dslide.comm import liveness
from dslide.comm.agreement import ranks_in_words
from dslide.comm.frames import PIECE, Buffer, Frame, Kind, Transport, name_check, pack, unpack
from dslide.errors import CommError, PeerFailed

_SPIN = 2e-4  # seconds for which a waiting caller polls without a pause: even the shortest sleep takes half of it
_POLL, _POLL_MOST = 5e-5, 1e-3  # seconds between polls for a message, at first and after a while
_POLL_IDLE = 0.02  # seconds between polls of the thread while nothing is in flight
_SIDE_SECONDS = 0.3  # after a frame on the side channel, in which the thread polls more often: an answer may follow


class _Peer:
    """The state of another rank, as seen by this one."""

    def __init__(self) -> None:
        self.heard = self.moved = time.monotonic()  # last frame, and last frame of a message
        self.sent = self.taken = 0  # pieces, to and from it
        self.messages = 0  # complete ones from it: the number of the exchange that its next one belongs to
        self.pieces: list[memoryview] = []  # of that next one
        self.fault = ""  # why frames from it can't be used any more, except one that reports its failure
        self.gone = False  # it receives nothing any more


class Exchange:
    """One exchange in flight."""

    def __init__(self, progress: Progress, name: str, own: bytes):
        self.name, self.number, self.step, self._progress = name, progress.exchanges, progress.step, progress
        self.arrived: dict[int, Buffer] = {progress.rank: own}
        self.begun = self.complete_at = time.monotonic()
        self.counted = False  # whether its times are included in the communicator's sums

    def wait(self) -> list[Buffer]:
        """The messages of all ranks, in rank order; the same if called again. CommError if one can't arrive.

        Returns
        -------
        list of bytes

        Raises
        ------
        CommError
            A message can't arrive.
        """
        return self._progress._wait(self)

    def __str__(self) -> str:
        return f'exchange "{self.name}" of step {self.step}'


class Progress:
    """The exchanges of one rank. What it knows of the others, and what is in flight, is guarded by a lock."""

    def __init__(self, transport: Transport | None = None, limit: float = liveness.SILENCE_LIMIT):
        self._transport = transport
        self.rank = 0 if transport is None else transport.rank
        self.size = 1 if transport is None else transport.size
        self.limit = limit
        self.step = 0  # of training, for error messages; set by the trainer
        self.shares: tuple[int, ...] = ()  # of the network, one for each rank, in proportion; empty: equal
        self.bytes_sent = 0  # in exchanges, headers included; without heartbeats and the side channel
        self.wait_seconds = 0.0  # in which this rank only waited
        self.flight_seconds = 0.0  # from posting an exchange to its last arrival, summed over exchanges
        self.exchanges = 0  # begun so far: a job in which no rank begins one makes no progress
        self.failure: CommError | None = None  # the first that this rank knows of; nothing can be exchanged after it
        self._open: dict[int, Exchange] = {}  # incomplete ones, oldest first
        self._early: dict[int, list[tuple[int, int, Buffer]]] = {}  # messages of exchanges not yet posted here
        self._peers = {rank: _Peer() for rank in range(self.size) if rank != self.rank}
        self._lock = threading.RLock()  # of all of the above, and of the transport
        self._wake = threading.Event()  # the thread has something to do
        self._waiting = False  # a caller waits and moves the bytes itself
        self._closed = False
        self._on_side: Callable[[int, memoryview], None] | None = None  # handles frames of the side channel
        self._side_at = -_SIDE_SECONDS  # when one was last sent or received
        if self.size > 1:
            self._thread = threading.Thread(target=self._run, name="dslide-comm", daemon=True)
            self._thread.start()

    # ---- sending; called with the lock held, except for methods that take it ----------------------------------------

    def _post(self, name: str, outgoing: Sequence[Buffer]) -> Exchange:
        if len(outgoing) != self.size:
            raise ValueError(f"{len(outgoing)} messages for {self.size} ranks")
        with self._lock:
            exchange = Exchange(self, name, bytes(outgoing[self.rank]))
            if self._closed:
                raise CommError(f"{exchange}: the communicator is closed")
            self.exchanges += 1
            cut: dict[int, list[tuple[memoryview, int]]] = {}  # most exchanges send the same content to all ranks
            for offset in range(1, self.size):  # each rank starts with another one
                to = (self.rank + offset) % self.size
                if not self._peers[to].gone:
                    content = outgoing[to]
                    if id(content) not in cut:
                        cut[id(content)] = _pieces(content)
                    self._send_message(exchange, to, cut[id(content)])
            if self.size > 1:
                self._open[exchange.number] = exchange
            for source, their_name, content in self._early.pop(exchange.number, []):
                self._deliver(exchange, source, their_name, content)
        return exchange

    def _send_message(self, exchange: Exchange, to: int, pieces: list[tuple[memoryview, int]]) -> None:
        peer = self._peers[to]
        for number, (piece, check) in enumerate(pieces, start=1):
            kind = Kind.LAST if number == len(pieces) else Kind.PIECE
            self.bytes_sent += self._send(exchange, to, pack(kind, exchange.name, peer.sent, piece, check))
            peer.sent += 1

    def _send(self, place: object, to: int, frame: bytes) -> int:
        assert self._transport is not None
        try:
            self._transport.send(to, frame)
        except Exception as error:
            failure = CommError(f"{place}: nothing can be sent to rank {to}: {error}", [to])
            self._note_error(failure)
            raise failure from error
        return len(frame)

    def _send_to_all(self, kind: Kind, content: bytes) -> None:
        """Tries to send a frame to all other ranks that have not left; a goodbye to all, since those wait for it."""
        for to, peer in self._peers.items():
            if not peer.gone or kind == Kind.BYE:
                with suppress(CommError):
                    self._send(self._place(), to, pack(kind, "", peer.sent, content))

    def _sending(self) -> bool:
        return self._transport is not None and self._transport.sending()

    # ---- receiving ------------------------------------------------------------------------------------------------

    def _wait(self, exchange: Exchange) -> list[Buffer]:
        """The messages of all ranks, in rank order; moves the bytes until they are there."""
        begin = counted_from = polled = time.monotonic()
        self._waiting = True
        try:
            while True:
                with self._lock:
                    if len(exchange.arrived) < self.size:
                        self._pump()
                    if len(exchange.arrived) == self.size:
                        break
                    now = time.monotonic()
                    if now - polled > self.limit / 2:  # this process itself was stopped, and perhaps all were
                        counted_from = now
                    polled = now
                    self._check_missing(exchange, counted_from, now)
                    if self.failure is not None:
                        raise self.failure
                    quiet = now - max(begin, self._last_heard())
                if quiet < _SPIN:
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
        """Notes an error if a message that an exchange misses can't arrive, or did not in time since `begin`."""
        missing = {rank: peer for rank, peer in self._peers.items() if rank not in exchange.arrived}
        for rank, peer in missing.items():
            if peer.fault:
                self._note_error(CommError(f"{exchange}: {peer.fault}", [rank]))
        most = liveness.STUCK * self.limit
        silent = [rank for rank, peer in missing.items() if now - max(begin, peer.heard) > self.limit]
        stuck = [rank for rank, peer in missing.items() if now - max(begin, peer.moved) > most]
        for ranks, fault, limit in ((silent, "silent", self.limit), (stuck, "alive, but nothing sent", most)):
            if ranks:
                sentence = f"{exchange}: {ranks_in_words(ranks)} {fault} for {limit:g} s; given up"
                self._note_error(CommError(sentence, ranks))

    def _pump(self) -> None:
        """Handles the frames that have arrived."""
        if self._transport is None:
            return
        try:
            for source, frame in self._transport.receive():
                self._take(source, self._peers[source], unpack(frame))
        except Exception as error:
            self._note_error(CommError(f"{self._place()}: nothing can be received: {error}"))

    def _take(self, source: int, peer: _Peer, frame: Frame | None) -> None:
        peer.heard = time.monotonic()
        if frame is None:
            peer.fault = peer.fault or f"a message from rank {source} is damaged"
            return
        peer.gone = peer.gone or frame.kind in (Kind.FAILED, Kind.BYE)
        if frame.kind == Kind.FAILED:
            self._note_error(PeerFailed(*json.loads(bytes(frame.content))))
        elif peer.fault:
            return
        elif frame.number > peer.taken:
            peer.fault = f"a message from rank {source} was lost"
        elif frame.kind == Kind.BYE:
            peer.fault = f"rank {source} has ended"
        elif frame.kind == Kind.HEARTBEAT:
            return
        elif frame.kind == Kind.SIDE:
            self._side_at = peer.heard
            if self._on_side is not None:
                self._on_side(source, frame.content)
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
            self._note_error(CommError(f"{exchange}: {fault}", [source]))
            return
        exchange.arrived[source] = content
        if len(exchange.arrived) == self.size:
            exchange.complete_at = time.monotonic()
            del self._open[exchange.number]

    def _note_error(self, error: CommError) -> None:
        self.failure = self.failure or error

    def _place(self) -> str:
        """Where this rank is, for error messages."""
        return str(next(iter(self._open.values()), f"step {self.step}"))

    def _last_heard(self) -> float:
        return max((peer.heard for peer in self._peers.values()), default=0.0)

    # ---- the thread, and the end ------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The thread: moves bytes and sends heartbeats until the communicator is closed."""
        last_heartbeat = time.monotonic()
        while True:
            with self._lock:
                if self._closed:
                    return
                self._wake.clear()
                if not self._waiting:
                    self._pump()
                now = time.monotonic()
                interval = min(liveness.HEARTBEAT, self.limit / liveness.HEARTBEATS_PER_LIMIT)
                if now - last_heartbeat >= interval:
                    last_heartbeat = now
                    self._send_to_all(Kind.HEARTBEAT, b"")
                pause = min(_POLL_IDLE, interval)
                if not self._waiting:
                    if self._open or self._sending():
                        pause = _pause(now - self._last_heard())
                    elif now - self._side_at < _SIDE_SECONDS:
                        pause = _POLL_MOST
            self._wake.wait(pause)

    def _leave(self, kind: Kind, content: bytes) -> None:
        if self.size == 1 or self._closed:
            return
        with self._lock:
            self._send_to_all(kind, content)
        begin = time.monotonic()
        while True:
            with self._lock:
                self._pump()
                waited = time.monotonic() - begin
                alone = all(p.gone for p in self._peers.values())
                hopeless = kind == Kind.FAILED or self.failure is not None or alone
                # Other ranks may leave too: wait a moment, since MPI complains about goodbyes that were not received.
                done = not self._sending() and (hopeless or waited > liveness.FAREWELL)
                if done or waited > (liveness.FAREWELL if hopeless else self.limit):
                    self._closed = True
                    break
            time.sleep(_pause(waited))
        self._wake.set()
        self._thread.join(1.0)


def _pieces(content: Buffer) -> list[tuple[memoryview, int]]:
    """A message in pieces, at least one, each with its checksum."""
    view = memoryview(content)
    if view.nbytes > PIECE:
        view = view.cast("B")
    cut = [view[at : at + PIECE] for at in range(0, view.nbytes, PIECE)] if view.nbytes > PIECE else [view]
    return [(piece, zlib.crc32(piece)) for piece in cut]


def _pause(quiet: float) -> float:
    """Seconds until the next poll, after so many without a message: short waits end quickly, long ones cost little."""
    return min(_POLL_MOST, max(_POLL, quiet / 8))
