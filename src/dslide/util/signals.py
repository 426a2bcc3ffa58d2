"""Ctrl-C and SIGTERM that wait for a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

_ORDINARY = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_terminated = False


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Within the block Ctrl-C and SIGTERM, with which a machine says that it will be taken away, interrupt nothing by
    themselves; the function given says whether one came. Each, sent a second time, interrupts at once. Outside the main
    thread, where Python has no signals, and where somebody else handles a signal, nothing is changed."""
    pressed = False

    def note(number: int, _frame: FrameType | None) -> None:
        global _terminated
        nonlocal pressed
        pressed = True
        _terminated = _terminated or number == signal.SIGTERM
        signal.signal(number, before[signal.Signals(number)])

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in _ORDINARY}
    ours = [number for number, handler in before.items() if handler is _ORDINARY[number]]
    for number in ours:
        signal.signal(number, note)
    try:
        yield lambda: pressed
    finally:
        for number in ours:
            signal.signal(number, before[number])


@contextmanager
def handling(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block these signals are handled so; but for those that are ignored, and outside the main thread."""
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
    """Whether this process was told to end, by SIGTERM, within such a block."""
    return _terminated
