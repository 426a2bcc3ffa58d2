"""Axes of charts: units that suit the numbers, round ticks, and where a value is."""

from __future__ import annotations

import math
from collections.abc import Iterable

TIME = ((1, "s"), (60, "min"), (3600, "h"), (86400, "days"))
BYTES = ((1, "bytes"), (1e3, "KB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
COUNT = ((1, ""), (1e6, "million "), (1e9, "billion "))
PLAIN = ((1, ""),)
Units = tuple[tuple[float, str], ...]


def unit(units: Units, most: float) -> tuple[float, str]:
    """The largest unit of which the largest number is at least 3, and its name."""
    return [each for each in units if each is units[0] or most >= 3 * each[0]][-1]


class Axis:
    """Values to places between two ends, in pixels."""

    def __init__(self, values: Iterable[float], begin: float, end: float, ticks: int, zero: bool = False) -> None:
        found = list(values)
        low, high = min(found), max(found)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        self.begin, self.end = begin, end
        self.ticks, self._step = round_ticks(low, high, ticks)
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def place(self, value: float) -> float:
        """Where a value is."""
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def shown(self, tick: float) -> str:
        """A tick in words, with as many digits as it takes to tell it from the next."""
        digits = max(0, -math.floor(math.log10(self._step) + 1e-9))
        return f"{tick + 0.0:,.{digits}f}" if digits < 7 else f"{tick:.3g}"


def round_ticks(low: float, high: float, most: int) -> tuple[list[float], float]:
    """At most so many round numbers (at least 3) around the values, and the step between them."""
    wide = max(high - low, abs(high) * 1e-3, 1e-9)
    power = 10.0 ** math.floor(math.log10(wide / most))
    for step in (times * power for times in (1, 2, 2.5, 5, 10, 20, 25, 50, 100)):
        begin, end = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
        end = max(end, begin + 1)
        if end - begin < most:
            break
    return [i * step for i in range(begin, end + 1)], step
