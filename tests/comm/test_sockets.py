"""Ranks that are connected by TCP: the contract of communicators, and what can go wrong before and after."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.communicator_contract import CONTRACT, LIMIT

from dslide.comm import Communicator
from dslide.comm.sockets import Address, Listener, SocketTransport
from dslide.errors import CommError


def run_ranks(size: int, work: Callable[[int, SocketTransport], Any]) -> list[Any]:
    """What `work` returned on every rank, each in a thread, or the error it raised there."""
    listeners = [Listener() for _ in range(size)]
    addresses = [Address("127.0.0.1", listener.port, listener.secret) for listener in listeners]
    outcomes: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            outcomes[rank] = work(rank, listeners[rank].connect(rank, addresses, LIMIT))
        except BaseException as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    return outcomes


def run_promise(promise: Callable[[Communicator], None], size: int) -> list[Any]:
    def work(rank: int, transport: SocketTransport) -> None:
        comm = Communicator(transport, LIMIT)
        try:
            promise(comm)
        except Exception as error:
            comm.fail(str(error), 1)
            raise
        finally:
            comm.close()

    return run_ranks(size, work)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", CONTRACT)
def test_contract(name: str, size: int) -> None:
    assert [error for error in run_promise(CONTRACT[name], size) if error is not None] == []


def test_a_rank_whose_process_ends_without_a_word_is_named_at_once() -> None:
    def work(rank: int, transport: SocketTransport) -> None:
        if rank == 2:
            for link in transport._links.values():
                link.socket.close()  # as the system does for a process that is killed
            return
        comm = Communicator(transport, LIMIT)
        comm.barrier("next")

    begin = time.monotonic()
    *errors, last = run_ranks(3, work)
    assert last is None
    assert [str(error) for error in errors] == ['exchange "next" of step 0: rank 2 has ended'] * 2
    assert time.monotonic() - begin < LIMIT / 2


def test_a_rank_that_does_not_come_is_named() -> None:
    listener = Listener()
    missing = Address("127.0.0.1", 1, b"")
    with pytest.raises(CommError, match=r"^ranks 1 and 2 did not connect to rank 0 within 0\.2 s; given up$"):
        listener.connect(0, [missing] * 3, 0.2)


def test_a_rank_that_does_not_listen_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    gone = Address("127.0.0.1", port, b"x" * 16)
    with pytest.raises(CommError, match=f"^rank 1 can't connect to rank 0 at 127.0.0.1, port {port}: .*refused"):
        Listener().connect(1, [gone, gone], 5)


def test_others_that_connect_are_turned_away() -> None:
    listeners = [Listener() for _ in range(2)]
    addresses = [Address("127.0.0.1", listener.port, listener.secret) for listener in listeners]
    strangers = [socket.create_connection(("127.0.0.1", listeners[0].port)) for _ in range(2)]
    strangers[0].sendall(b"x" * 20)
    strangers[1].close()
    made: list[SocketTransport] = []
    other = threading.Thread(target=lambda: made.append(listeners[1].connect(1, addresses, 5)), daemon=True)
    other.start()
    transport = listeners[0].connect(0, addresses, 5)
    other.join(5)
    transport.send(1, b"hello")
    end = time.monotonic() + 5
    while not (came := made[0].receive()):
        assert time.monotonic() < end
    assert came == [(0, b"hello")]
    strangers[0].settimeout(5)
    assert strangers[0].recv(1) == b""  # closed


def test_a_frame_longer_than_any_is_refused() -> None:
    def work(rank: int, transport: SocketTransport) -> str:
        if rank == 1:
            transport._links[0].socket.sendall(b"\xff" * 8)
            return ""
        with pytest.raises(CommError, match="nothing can be received: a frame has 4294967295 bytes"):
            Communicator(transport, LIMIT).barrier("next")
        return "refused"

    assert run_ranks(2, work) == ["refused", ""]
