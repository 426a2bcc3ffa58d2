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


def product_speed_now(threads: int) -> float:
    """The present speed of small matrix products that fit into L1 and L2, in 10^9 operations per second. Takes a few
    milliseconds; other load on the same cores or caches lowers it."""
    return float(_core.product_speed_now(threads))
