"""A curve of any number of points in bounded memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
BINS = 200  # a curve has at most twice as many


@dataclass
class _Bin:
    """Consecutive points."""

    x: float  # of the first
    end: float  # x of the last
    low: float
    high: float
    total: float  # of the values, each times its weight
    weight: float

    @property
    def middle(self) -> float:
        return (self.x + self.end) / 2

    @property
    def mean(self) -> float:
        return self.total / self.weight

    def join(self, later: _Bin) -> None:
        """Adds the next bin."""
        self.end = later.end
        self.low, self.high = min(self.low, later.low), max(self.high, later.high)
        self.total, self.weight = self.total + later.total, self.weight + later.weight


class Curve:
    """Points in order of x. When there are too many, pairs of neighbours are merged into one bin, which keeps their
    lowest, highest and mean value."""

    def __init__(self) -> None:
        self._bins: list[_Bin] = []
        self._per_bin = 1  # points in a bin
        self._in_last = 0  # points in the last one

    def __len__(self) -> int:
        return len(self._bins)

    def add(self, x: float, value: float, weight: float = 1.0) -> None:
        """Adds a point; `weight`, above 0, is its weight in the mean of its bin."""
        point = _Bin(x, x, value, value, value * weight, weight)
        if self._bins and self._in_last < self._per_bin:
            self._bins[-1].join(point)
            self._in_last += 1
            return
        if len(self._bins) == 2 * BINS:
            for one, other in zip(self._bins[::2], self._bins[1::2], strict=True):
                one.join(other)
            del self._bins[1::2]
            self._per_bin *= 2
        self._bins.append(point)
        self._in_last = 1

    def cut(self, x: float) -> None:
        """Removes the bins that end beyond x."""
        self._bins = [b for b in self._bins if b.end <= x]
        self._in_last = self._per_bin

    @property
    def means(self) -> list[Point]:
        """The mean of each bin, at its middle."""
        return [(b.middle, b.mean) for b in self._bins]

    @property
    def band(self) -> list[Point]:
        """Outline: the highest value of each bin from left to right, then the lowest back."""
        return [(b.middle, b.high) for b in self._bins] + [(b.middle, b.low) for b in reversed(self._bins)]

    def at(self, x: float) -> float:
        """The mean of the last bin that begins at x or before it; the first one's if none does, and 0 of no bins."""
        place = bisect_right(self._bins, x, key=lambda b: b.x) - 1
        return self._bins[max(place, 0)].mean if self._bins else 0.0


def smoothed(points: Sequence[Point]) -> list[Point]:
    """Moving averages: over at most 13 points where there are many, over none where there are few."""
    reach, smooth = min(len(points) // 25, 6), []
    for i, (x, _) in enumerate(points):
        near = min(reach, i, len(points) - 1 - i)  # as many on both sides
        window = [y for _, y in points[i - near : i + near + 1]]
        smooth.append((x, sum(window) / len(window)))
    return smooth
