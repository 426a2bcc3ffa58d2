"""Schedules: the learning rate of each step, and the steps at which hash tables are rebuilt."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dslide.config import Config

FULL_SHARE = 1 / 3  # of the steps of a trapezoid, at the full rate


def learning_rate(config: Config, step: int, total_steps: int) -> float:
    """The learning rate of a step, counted from 0, out of `total_steps`; 0: unknown, the rate is constant."""
    if total_steps == 0:
        return config.learning_rate
    warm = config.warmup * total_steps
    if step < warm:
        return config.learning_rate * (step + 1) / (math.floor(warm) + 1)
    left = max(0.0, 1 - (step - warm) / max(total_steps - warm, 1))
    shares = {
        "constant": 1.0,
        "linear": left,
        "cosine": 0.5 * (1 - math.cos(math.pi * left)),
        "trapezoid": min(1.0, left / (1 - FULL_SHARE)),
    }
    return config.learning_rate * shares[config.schedule]


class RebuildSchedule:
    """When hash tables are rebuilt: after `every` steps, then at intervals that grow by the factor `growth`."""

    def __init__(self, every: int, growth: float) -> None:
        self._next, self._interval, self._growth = every, float(every), growth

    def due(self, step: int) -> bool:
        """Whether tables are to be rebuilt before this step; each rebuild is due once."""
        if step < self._next:
            return False
        self._advance()
        return True

    def skip_to(self, step: int) -> None:
        """Skips rebuilds before `step`, all of which were done."""
        while self._next < step:
            self._advance()

    def before(self, steps: int) -> Iterator[int]:
        """The coming rebuilds of a training of so many steps."""
        while self._next < steps:
            yield self._next
            self._advance()

    def _advance(self) -> None:
        self._interval *= self._growth
        self._next = math.ceil(self._next + self._interval)
