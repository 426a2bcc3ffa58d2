"""Axes of charts: a unit that suits the numbers, round ticks, and the position of a value."""

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
    """Maps values to positions between `begin` and `end`, in pixels. `zero`: the axis includes 0."""

    def __init__(self, values: Iterable[float], begin: float, end: float, ticks: int = 6, zero: bool = False) -> None:
        found = [*values, *([0.0] if zero else [])]
        self.begin, self.end = begin, end
        self.ticks = round_ticks(min(found), max(found), ticks)
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def position(self, value: float) -> float:
        """The position of a value, in pixels."""
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def label(self, tick: float) -> str:
        """A tick as text, with as many digits as distinguish it from the next."""
        return tick_label(tick, self.ticks[1] - self.ticks[0])


def tick_label(tick: float, step: float) -> str:
    """A number as text, with the digits that a multiple of the step needs."""
    digits = next((n for n in range(7) if abs(round(step, n) - step) < 1e-6 * step), None)
    return f"{tick:.6g}" if digits is None else f"{tick + 0.0:,.{digits}f}"


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """At most so many evenly spaced round numbers (at least 3) around the values."""
    wide = max(high - low, abs(high) * 1e-3, 1e-9)
    power = 10.0 ** math.floor(math.log10(wide / most))
    for step in (times * power for times in (1, 2, 2.5, 5, 10, 20, 25, 50, 100)):
        begin = math.floor(low / step + 1e-6)
        end = max(math.ceil(high / step - 1e-6), begin + 1)
        if end - begin < most:
            break
    return [i * step for i in range(begin, end + 1)]
