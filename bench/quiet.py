"""Tells steps in which all threads had cores of their own from others.

A virtual machine's processors are not always cores: for a while two of them may be run by one core's two hyperthreads,
or share theirs with other machines. From inside that can't be seen, but measured: before and after each step all
threads multiply small matrices in near caches for a few milliseconds. A step counts as undisturbed if both times they
were about as fast as ever in the run. What is measured itself, the time of the step, has no say in that.
"""

from __future__ import annotations

from itertools import pairwise

from dslide.machine_speed import product_speed_now

NEAR = 0.95  # of the best speed of these products: undisturbed


class Watch:
    """Watches the steps of a run; it begins before the first."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._seen = [product_speed_now(threads)]

    def step_done(self) -> None:
        """To be called after each step, which is not to be timed longer."""
        self._seen.append(product_speed_now(self._threads))

    @property
    def best(self) -> float:
        """The best speed that was seen, in 10^9 operations a second."""
        return max(self._seen)

    def undisturbed(self) -> list[bool]:
        """For each step so far whether it was."""
        return [min(pair) >= NEAR * self.best for pair in pairwise(self._seen)]
