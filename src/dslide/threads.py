"""How many threads the core computes with."""

from __future__ import annotations

import os

from . import _core


def available_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_threads(threads: int) -> int:
    """Sets the number of threads, 0 meaning one per core; returns it."""
    chosen = threads or available_cores()
    _core.set_threads(chosen)
    return chosen
