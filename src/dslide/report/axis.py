"""Axes of charts: a unit that suits the numbers, round ticks, and the position of a value."""

from __future__ import annotations

import math
from collections.abc import Iterable

TIME = ((1, "s"), (60, "min"), (3600, "h"), (86400, "days"))
BYTES = ((1, "bytes"), (1e3, "KB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
COUNT = ((1, ""), (1e6, "million "), (1e9, "billion "))
PLAIN = ((1, ""),)
Units = tuple[tuple[float, str], ...]
LOG_LEAST = 1e-3  # on a logarithmic axis; smaller values are drawn there


def unit(units: Units, most: float) -> tuple[float, str]:
    """The largest unit of which the largest number is at least 3, and its name."""
    return [each for each in units if each is units[0] or most >= 3 * each[0]][-1]


class Axis:
    """Maps values to positions between `begin` and `end`, in pixels. `zero`: the axis includes 0."""

    def __init__(
        self, values: Iterable[float], begin: float, end: float, ticks: int = 6, zero: bool = False, log: bool = False
    ) -> None:
        found = [max(value, LOG_LEAST) if log else value for value in values] + [0.0] * zero
        self.begin, self.end, self.log = begin, end, log
        low, high = min(found), max(found)
        self.ticks = log_ticks(low, high) if log else round_ticks(low, high, ticks)
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def position(self, value: float) -> float:
        """The position of a value, in pixels."""
        low, high, at = (self._scaled(number) for number in (self.low, self.high, value))
        return self.begin + (at - low) / (high - low) * (self.end - self.begin)

    def label(self, tick: float) -> str:
        """A tick as text, with as many digits as distinguish it from the next."""
        step = tick if self.log else self.ticks[1] - self.ticks[0]
        digits = next((n for n in range(7) if abs(round(step, n) - step) < 1e-6 * step), None)
        return f"{tick:.6g}" if digits is None else f"{tick + 0.0:,.{digits}f}"

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, LOG_LEAST)) if self.log else value


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """At most so many evenly spaced round numbers (at least 3) around the values."""
    wide = max(high - low, abs(high) * 1e-3, 1e-9)
    power = 10.0 ** math.floor(math.log10(wide / most))
    for step in (times * power for times in (1, 2, 2.5, 5, 10, 20, 25, 50, 100)):
        begin, end = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
        end = max(end, begin + 1)
        if end - begin < most:
            break
    return [i * step for i in range(begin, end + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten around the values, or only powers of ten where labels would overlap."""
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
    steps = (1, 2, 5) if last - first <= 4 and high < 1e5 else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    begin = max(i for i, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    end = min(i for i, tick in enumerate(ticks) if tick >= high and i > begin)
    return ticks[begin : end + 1]
