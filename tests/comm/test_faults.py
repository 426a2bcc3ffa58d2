"""What becomes of faults between ranks: the right error on every rank, which names rank, exchange and step; never a
hang, and never wrong bytes."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.communicator_contract import PIECE, all_to_all, message, same
from support.inprocess import Fault, Injection, InProcess, Wires, rank_outcomes, run_ranks

from dslide.comm import Communicator, liveness
from dslide.comm.frames import Kind, pack, unpack
from dslide.errors import CommError, PeerFailed

pytestmark = pytest.mark.waiting
STEPS = 6


def train(comm: Communicator) -> str:
    """One exchange per step."""
    for step in range(STEPS):
        comm.step = step
        exchange, want = all_to_all(comm, step, 100)
        same(exchange.wait(), want)
    return "done"


def outcomes(*injections: Injection, limit: float = 20.0, size: int = 3) -> list[Any]:
    """What the ranks of a short training say in the end: "done", or their error."""
    ends = rank_outcomes(size, train, limit, injections)
    for end in ends:
        assert end == "done" or isinstance(end, CommError)
    return ends


# ---- single messages, from rank 1 to rank 2 in step 3 ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.DROP, 'exchange "exchange 3" of step 3: a message from rank 1 was lost'),
        (Fault.CORRUPT, 'exchange "exchange 3" of step 3: a message from rank 1 is damaged'),
        (Fault.TRUNCATE, 'exchange "exchange 3" of step 3: a message from rank 1 is damaged'),
        (Fault.DUPLICATE, 'exchange "exchange 4" of step 4: a message from rank 1 came twice'),
    ],
)
def test_a_faulty_message(fault: Fault, error: str) -> None:
    ends = outcomes(Injection(fault, rank=1, piece=3, to=2, bit=500))
    assert type(ends[2]) is CommError
    assert str(ends[2]) == error
    for other in ends[:2]:
        assert isinstance(other, PeerFailed)
        assert (other.rank, other.message) == (2, f"CommError: {error}")


def test_sending_that_fails() -> None:
    ends = outcomes(Injection(Fault.FAIL, rank=1, piece=3, to=2))
    assert str(ends[1]) == 'exchange "exchange 3" of step 3: nothing can be sent to rank 2: the cable is cut'
    for other in (ends[0], ends[2]):
        assert isinstance(other, PeerFailed)
        assert other.rank == 1
        assert str(ends[1]) in str(other)


def test_a_late_message_is_fine() -> None:
    begin = time.monotonic()
    assert outcomes(Injection(Fault.DELAY, rank=1, piece=3, to=2, seconds=0.3)) == ["done"] * 3
    assert time.monotonic() - begin >= 0.3


@pytest.mark.parametrize("leaves", [False, True])
def test_a_lost_message_is_noticed_even_if_no_other_comes(leaves: bool) -> None:
    noticed = threading.Event()

    def work(comm: Communicator) -> None:
        exchange = comm.post("only one", [b"x", b"y"])
        if comm.rank == 1:
            if leaves:
                comm.close()
            assert noticed.wait(60)
            return
        try:
            exchange.wait()
        finally:
            noticed.set()

    ends = rank_outcomes(2, work, 5.0, [Injection(Fault.DROP, rank=1, piece=0)])
    assert str(ends[0]) == 'exchange "only one" of step 0: a message from rank 1 was lost'
    assert ends[1] is None


@pytest.mark.parametrize("fault", [Fault.DROP, Fault.DUPLICATE, Fault.CORRUPT, Fault.TRUNCATE])
@pytest.mark.parametrize("piece", [0, 1, 2])
def test_a_faulty_piece_of_a_large_message(fault: Fault, piece: int) -> None:
    def work(comm: Communicator) -> None:
        exchange, want = all_to_all(comm, 0, 2 * PIECE + 10)
        same(exchange.wait(), want)
        comm.barrier("next")

    ends = rank_outcomes(2, work, 5.0, [Injection(fault, rank=1, piece=piece, bit=8_000_000)])
    assert type(ends[0]) is CommError
    name = "next" if (fault, piece) == (Fault.DUPLICATE, 2) else "exchange 0"  # all of the message is there already
    assert str(ends[0]).startswith(f'exchange "{name}" of step 0: a message from rank 1 ')
    assert ends[1] is None or isinstance(ends[1], PeerFailed)


# ---- ranks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.KILL, Fault.DELAY])
def test_a_rank_that_falls_silent(fault: Fault) -> None:
    ends = outcomes(Injection(fault, rank=1, piece=3, seconds=60.0), limit=1.0)
    error = 'exchange "exchange 3" of step 3: rank 1 silent for 1 s; given up'
    assert error in str(ends[0])
    assert error in str(ends[2])
    if fault == Fault.KILL:  # which heard of nobody any more, but perhaps of one a moment longer
        silent = r'exchange "exchange [34]" of step [34]: (rank 0|rank 2|ranks 0 and 2) silent for 1 s; given up'
        assert re.fullmatch(silent, str(ends[1]))
    else:
        assert error in str(ends[1])
        assert isinstance(ends[1], PeerFailed)


def test_a_link_that_falls_silent() -> None:
    ends = outcomes(Injection(Fault.SILENT, rank=1, piece=3, to=2), limit=1.0)
    error = 'exchange "exchange 3" of step 3: rank 1 silent for 1 s; given up'
    assert str(ends[2]) == error
    for other in ends[:2]:
        assert isinstance(other, PeerFailed)
        assert (other.rank, other.message) == (2, f"CommError: {error}")


def test_a_rank_that_is_alive_but_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "STUCK", 2)
    given_up = threading.Event()

    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            assert given_up.wait(60)
            return
        try:
            comm.barrier("start")
        finally:
            given_up.set()

    ends = rank_outcomes(2, work, 1.0)
    assert str(ends[0]) == 'exchange "start" of step 0: rank 1 alive, but nothing sent for 2 s; given up'


def test_a_rank_that_computes_for_long_is_not_given_up() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            time.sleep(2.0)
        comm.barrier("start")

    run_ranks(2, work, limit=1.0)


def test_a_message_that_travels_for_long_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "STUCK", 1)
    late = [Injection(Fault.DELAY, rank=1, piece=piece, seconds=0.5 * piece) for piece in range(6)]

    def work(comm: Communicator) -> None:
        want = message(1, 0, 0, 6 * PIECE)
        got = comm.post("exchange", [want, b""] if comm.rank == 1 else [b"", b""]).wait()
        if comm.rank == 0:
            same(got, [b"", want])

    run_ranks(2, work, limit=1.5, injections=late)


class Slow(InProcess):
    """A transport that sends one frame at each look for others, and no faster than one in 10 ms."""

    def __init__(self, rank: int, links: Wires):
        super().__init__(rank, links)
        self._outgoing: deque[tuple[int, bytes]] = deque()
        self._next = 0.0

    def send(self, to: int, frame: bytes) -> None:
        self._outgoing.append((to, frame))

    def receive(self) -> list[tuple[int, bytes]]:
        if self._outgoing and time.monotonic() > self._next:
            self._next = time.monotonic() + 0.01
            super().send(*self._outgoing.popleft())
        return super().receive()

    def sending(self) -> bool:
        return bool(self._outgoing)


def test_a_rank_sends_everything_before_it_leaves() -> None:
    links: Wires = [[deque(), deque()], [deque(), deque()]]
    first, second = Communicator(InProcess(0, links), 20.0), Communicator(Slow(1, links), 20.0)
    want = message(1, 0, 0, 20 * PIECE)
    exchange = first.post("exchange", [b"", b""])
    second.post("exchange", [want, b""]).wait()
    second.close()
    same(exchange.wait(), [b"", want])
    first.close()


# ---- the thread -----------------------------------------------------------------------------------------------------


class Broken(InProcess):
    """A transport from which nothing can be received any more once it is told so."""

    cut = False

    def receive(self) -> list[tuple[int, bytes]]:
        if self.cut:
            raise OSError("the cable is cut")
        return super().receive()


def test_an_error_in_the_thread_reaches_the_caller() -> None:
    links: Wires = [[deque(), deque()], [deque(), deque()]]
    transports = [Broken(rank, links) for rank in range(2)]
    first, second = (Communicator(transport, 20.0) for transport in transports)
    exchange = first.post("exchange", [b"", b""])
    second.post("exchange", [b"", b""])
    exchange.wait()
    exchange = first.post("lost", [b"", b""])
    transports[0].cut = True
    time.sleep(0.2)  # the thread meets it first
    with pytest.raises(CommError, match=r'^exchange "lost" of step 0: nothing can be received: the cable is cut$'):
        exchange.wait()
    first.close()
    second.close()


def test_the_thread_ends_with_the_communicator() -> None:
    before = threading.active_count()
    run_ranks(4, train)
    assert threading.active_count() == before


# ---- any fault anywhere ---------------------------------------------------------------------------------------------


def test_any_damage_to_a_frame_is_noticed() -> None:
    frame = pack(Kind.LAST, "exchange", 3, b"some bytes")
    said = unpack(frame)
    assert said is not None
    assert (said.kind, said.number, bytes(said.content)) == (Kind.LAST, 3, b"some bytes")
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        assert unpack(damaged) is None
    for length in range(len(frame)):
        assert unpack(frame[:length]) is None


@st.composite
def injections(draw: st.DrawFn) -> Injection:
    return Injection(
        draw(st.sampled_from(Fault)),
        rank=draw(st.integers(0, 2)),
        piece=draw(st.integers(0, STEPS - 1)),
        to=draw(st.none() | st.integers(0, 2)),
        seconds=draw(st.sampled_from([0.01, 0.1, 30.0])),
        bit=draw(st.integers(0, 2000)),
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(injections(), min_size=1, max_size=3))
def test_random_faults_end_in_errors_or_in_the_right_bytes(faults: list[Injection]) -> None:
    outcomes(*faults, limit=0.4)
