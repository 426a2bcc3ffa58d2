"""Threads and instruction set of the native core."""

from __future__ import annotations

import os

from dslide import _core
from dslide.errors import ConfigError


def available_cores() -> int:
    """The number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def instruction_set() -> str:
    """The level in use: the best that this machine has, or the value of DSLIDE_ISA."""
    try:
        return _core.isa()
    except ValueError as error:
        raise ConfigError(f"DSLIDE_ISA: {error}") from None


def use_threads(threads: int) -> int:
    """Sets the number of threads, 0 meaning one per core; returns it."""
    instruction_set()  # refused here, before any work, if DSLIDE_ISA is wrong
    chosen = threads or available_cores()
    _core.set_threads(chosen)
    return chosen
