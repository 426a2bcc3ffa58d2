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

    with handling([number for number in _DEFAULT if signal.getsignal(number) is _DEFAULT[number]], note):
        yield lambda: received


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block these signals call `handler`, except those that are ignored; only in the main thread."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def terminated() -> bool:
    """Whether this process received SIGTERM within a block of `deferred_interrupt`."""
    return _terminated
