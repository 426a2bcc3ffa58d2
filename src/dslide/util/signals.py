"""Ctrl-C and SIGTERM, deferred to the end of a training step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_DEFAULT: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_terminated = False
_several_ranks = False  # whether this process is a rank of a job, whose ranks each get a signal of their own
_kept: dict[int, Any] = {}  # handlers of signals that other ranks have had already, and this one may still get


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Within the block Ctrl-C and SIGTERM (sent, for example, before a machine is preempted) only set a flag; the
    function given returns it. A second one of the same signal interrupts at once. Nothing changes outside the main
    thread, where Python handles no signals, or for a signal that has another handler."""
    received = False

    def note(number: int, _frame: FrameType | None) -> None:
        global _terminated
        nonlocal received
        received = True
        _terminated = _terminated or number == signal.SIGTERM
        signal.signal(number, _DEFAULT[number])

    numbers = [number for number in _DEFAULT if signal.getsignal(number) in (_DEFAULT[number], _kept.get(number))]
    before = _install(numbers, note)
    try:
        yield lambda: received
    except KeyboardInterrupt:
        if _several_ranks:
            _kept.update(dict.fromkeys(before, note))
            before = {}
        raise
    finally:
        _restore(before)


def expect_late_signals() -> None:
    """This process is a rank of a job. A signal to the job reaches its ranks at different times: some may have stopped
    training for it, all saved the network and left, before another one receives it. So a block of `deferred_interrupt`
    that KeyboardInterrupt ends goes on deferring the first signal of each kind."""
    global _several_ranks
    _several_ranks = True


def ignore_late_signals() -> None:
    """Ignores from now on the signals that are still deferred: called as the process ends, when Python handles no
    signals any more and one would kill it in MPI_Finalize, where the other ranks would then wait."""
    for number, handler in _kept.items():
        if signal.getsignal(number) is handler:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block these signals call `handler`, except those that are ignored; only in the main thread."""
    before = _install(numbers, handler)
    try:
        yield
    finally:
        _restore(before)


def _install(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """The handlers before, by signal; empty outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in handled}


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def terminated() -> bool:
    """Whether this process received SIGTERM within a block of `deferred_interrupt`."""
    return _terminated
