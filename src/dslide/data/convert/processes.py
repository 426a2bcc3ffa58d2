"""Work on a stream of pieces by several processes, with the results in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from dslide.errors import MemoryNeeded

Piece = TypeVar("Piece")
Result = TypeVar("Result")

AHEAD = 2  # pieces for each process that are under way or done

_work: Callable[[Any], Any]  # of a process that works for another


def processes_for(asked: int | None) -> int:
    """How many processes to use: what is asked for, or one per core; one where processes can't be forked safely."""
    return (asked or len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


def in_order(work: Callable[[Piece], Result], pieces: Iterable[Piece], processes: int) -> Iterator[Result]:
    """The results of all pieces, in order. `work` is a function of this process's memory, which others get a copy of
    as it is now; pieces and results are sent between them."""
    if processes == 1:
        yield from map(work, pieces)
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _begin, (work,))
    pending: deque[Future[Result]] = deque()
    try:
        for piece in pieces:
            pending.append(pool.submit(_run, piece))
            if len(pending) >= AHEAD * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise MemoryNeeded(
            "a process that reads the data was killed, probably for want of memory: use fewer threads"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(work: Callable[[Any], Any]) -> None:
    """Makes a new process ready. It leaves Ctrl-C to the one that made it, and ends when that does."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(piece: Any) -> Any:
    return _work(piece)
