"""Threads, instruction set and peak speed of the native core."""

from __future__ import annotations

import os
from dataclasses import dataclass

from dslide import _core
from dslide.errors import ConfigError


def available_cores() -> int:
    """The number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def openmp_threads() -> int:
    """The value of OMP_NUM_THREADS, which is set for processes that share the cores; 0: there is none."""
    value = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(value), available_cores()) if value.isascii() and value.isdigit() else 0


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


@dataclass(frozen=True)
class Speeds:
    """The best result of some threads together in short trials."""

    gflops: float  # 10^9 float32 operations per second; a multiply-add counts as two
    copy_gigabytes: float  # copying memory: 10^9 bytes per second, read and written


def measure_speeds(threads: int) -> Speeds:
    """Measures with the given threads and the instruction set in use; takes about half a second."""
    return Speeds(*_core.measure_speeds(threads))
