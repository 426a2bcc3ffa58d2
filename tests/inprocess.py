"""Ranks as threads of one process, for tests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from dslide.comm import Communicator


class InProcess:
    """The transport of one rank; frames go through queues that all ranks share."""

    def __init__(self, rank: int, inboxes: list[queue.SimpleQueue[tuple[int, bytes]]]):
        self.rank, self.size, self._inboxes = rank, len(inboxes), inboxes

    def send(self, to: int, frame: bytes) -> None:
        self._inboxes[to].put((self.rank, frame))

    def receive(self) -> list[tuple[int, bytes]]:
        arrived = []
        while not self._inboxes[self.rank].empty():
            arrived.append(self._inboxes[self.rank].get())
        return arrived

    def sending(self) -> bool:
        return False


def run_ranks(size: int, work: Callable[[Communicator], Any], limit: float = 20.0) -> list[Any]:
    """Runs `work(comm)` on every rank; returns what each returned. The first error is raised."""
    inboxes: list[queue.SimpleQueue[tuple[int, bytes]]] = [queue.SimpleQueue() for _ in range(size)]
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(rank: int) -> None:
        comm = Communicator(InProcess(rank, inboxes) if size > 1 else None, limit)
        try:
            results[rank] = work(comm)
        except BaseException as error:
            errors[rank] = error
            comm.fail(f"{type(error).__name__}: {error}", 1)
        finally:
            comm.close()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    from dslide.errors import PeerFailed

    own = [e for e in errors if e is not None and not isinstance(e, PeerFailed)]
    for error in own or [e for e in errors if e is not None]:
        raise error
    return results
