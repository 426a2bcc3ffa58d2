"""How fast this machine computes and copies at best, measured: what the speed of training is held against."""

from __future__ import annotations

from dataclasses import dataclass

from dslide import _core


@dataclass(frozen=True)
class Speeds:
    """The best that some threads of this machine did together in short trials."""

    gflops: float  # float32 multiply-adds, each counted as two operations, in 10^9 a second
    copy_gigabytes: float  # a copy in memory, bytes read and bytes written, in 10^9 a second


def measure_speeds(threads: int) -> Speeds:
    """Measures with so many threads and the instruction set in use; takes about half a second."""
    return Speeds(*_core.measure_speeds(threads))


def product_speed_now(threads: int) -> float:
    """What products of small matrices, in near caches, reach just now on so many threads, in 10^9 operations a second.
    Takes a few milliseconds; whoever else uses the same cores, or their caches, shows in it."""
    return float(_core.product_speed_now(threads))
