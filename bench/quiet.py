"""Tells steps in which all threads had cores of their own from others.

A virtual machine's processors are not always cores: for a while two of them may be run by one core's two hyperthreads,
or share theirs with other machines. From inside that can't be seen, but measured: before and after each step all
threads multiply small matrices in near caches for a few milliseconds. A step counts as undisturbed if both times they
were about as fast as ever in the run. What is measured itself, the time of the step, has no say in that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dslide.machine_speed import Speeds, measure_speeds, product_speed_now

T = TypeVar("T")
NEAR = 0.9  # of the best speed of these products: undisturbed
LEAST = 0.7  # of the peak of multiply-adds: what less means is that threads share a core all the time


def measured(threads: int, least: float = 0.0) -> Speeds:
    """What so many threads do at best, of several measurements: in some of them they may have shared a core. No peak
    below `least`, in 10^9 operations a second, is believed: that is measured again, for some seconds at most."""
    each: list[Speeds] = []
    while len(each) < 3 or (best_of(each).gflops < least and len(each) < 20):
        each.append(measure_speeds(threads))
    return best_of(each)


def best_of(each: Sequence[Speeds]) -> Speeds:
    """The best of several measurements."""
    return Speeds(max(s.gflops for s in each), max(s.copy_gigabytes for s in each))


class Watch:
    """Watches steps on so many threads. `peak` is what these do in multiply-adds, in 10^9 operations a second; `begin`
    is to be called before a step that does not follow upon another."""

    def __init__(self, threads: int, peak: float) -> None:
        self._threads, self._least = threads, LEAST * peak
        self._slower: list[float] = []  # for each step the lower of the two speeds, before and after it
        self._best = self._last = 0.0

    def begin(self) -> None:
        """Steps follow."""
        self._last = product_speed_now(self._threads)
        self._best = max(self._best, self._last)

    def step_done(self) -> None:
        """A step was done, and is not to be timed any longer."""
        before = self._last
        self.begin()
        self._slower.append(min(before, self._last))

    def undisturbed(self, steps: Sequence[T]) -> list[T]:
        """Those of all steps so far, or what was noted of them, that were undisturbed; if none was, all."""
        return [step for step, quiet in zip(steps, self._quiet(), strict=True) if quiet] or list(steps)

    @property
    def share(self) -> float:
        """Of all steps so far, how many were undisturbed."""
        return sum(self._quiet()) / len(self._slower)

    @property
    def best(self) -> float:
        """The best speed of the products, in 10^9 operations a second."""
        return self._best

    def _quiet(self) -> list[bool]:
        least = max(NEAR * self._best, self._least)
        return [slower >= least for slower in self._slower]
