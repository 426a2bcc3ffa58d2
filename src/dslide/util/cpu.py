"""The peak speed of this machine, measured: the profiler compares training with it."""

from __future__ import annotations

from dataclasses import dataclass

from dslide import _core


@dataclass(frozen=True)
class Speeds:
    """The best result of some threads together in short trials."""

    gflops: float  # 10^9 float32 operations per second; a multiply-add counts as two
    copy_gigabytes: float  # copying memory: 10^9 bytes per second, read and written


def measure_speeds(threads: int) -> Speeds:
    """Measures with the given threads and the instruction set in use; takes about half a second."""
    return Speeds(*_core.measure_speeds(threads))
