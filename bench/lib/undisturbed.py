"""Separates steps during which every thread had a core of its own from others.

The processors of a virtual machine are not always cores: two of them may run for a while on the hyperthreads of one
core, or share it with other machines. That is not visible from inside, but it can be measured: before and after each
step all threads multiply small, cached matrices for a few milliseconds. A step counts as undisturbed if both speeds are
near the best of the run. The time of the step itself is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dslide._core import product_speed_now

T = TypeVar("T")
NEAR = 0.9  # of the best speed of these products: undisturbed
LEAST = 0.7  # of the peak of multiply-adds; below it, threads share a core all the time


class StepMonitor:
    """Monitors steps on so many threads. `peak` is their speed in multiply-adds, in 10^9 operations a second. `begin`
    is called before a step that does not follow another one directly."""

    def __init__(self, threads: int, peak: float) -> None:
        self._threads, self._least = threads, LEAST * peak
        self._slower: list[float] = []  # for each step the lower of the speeds before and after it
        self._best = self._last = 0.0

    def begin(self) -> None:
        """Steps follow."""
        self._last = product_speed_now(self._threads)
        self._best = max(self._best, self._last)

    def step_done(self) -> None:
        """A step has ended; its time has been taken."""
        before = self._last
        self.begin()
        self._slower.append(min(before, self._last))

    def undisturbed(self, steps: Sequence[T]) -> list[T]:
        """The undisturbed ones of all steps so far, given as a value for each; all if none is undisturbed."""
        return [step for step, kept in zip(steps, self._kept(), strict=True) if kept] or list(steps)

    @property
    def share(self) -> float:
        """The share of undisturbed steps."""
        return sum(self._kept()) / len(self._slower)

    @property
    def best(self) -> float:
        """The best speed of the products, in 10^9 operations a second."""
        return self._best

    def _kept(self) -> list[bool]:
        least = max(NEAR * self._best, self._least)
        return [slower >= least for slower in self._slower]
