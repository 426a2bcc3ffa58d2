"""Tells steps in which all threads had cores of their own from others.

A virtual machine's processors are not always cores: for a while two of them may be run by one core's two hyperthreads,
or share theirs with other machines. From inside that can't be seen, but measured: before and after each step all
threads multiply small matrices in near caches for a few milliseconds. A step counts as undisturbed if both times they
were about as fast as ever in the run. What is measured itself, the time of the step, has no say in that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dslide.machine_speed import product_speed_now

T = TypeVar("T")
NEAR = 0.9  # of the best speed of these products: undisturbed


class Watch:
    """Watches steps on so many threads. `begin` is to be called before a step that does not follow upon another."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
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
        quiet = [s for s, slower in zip(steps, self._slower, strict=True) if slower >= NEAR * self._best]
        return quiet or list(steps)
