"""Curves as an SVG file: a line for each system over a logarithmic or an even axis. No dependencies.

Lines differ in colour, lightness, dashes and marks, so that they can be told apart in print and by everybody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]  # x, value
SECONDS = "seconds of training"

WIDTH, HEIGHT = 880, 470
LEFT, RIGHT, TOP, BOTTOM = 64, 256, 58, 96  # margins; on the right there are the lines' names
LINE_HEIGHT = 17
MANY = 100  # from which values have no fraction
LEAST = 1e-3  # on a logarithmic axis; what is smaller is drawn there
STYLES = (  # colour, dashes, mark; dark to light
    ("#15153a", "", "circle"),
    ("#a3201a", "9 4", "square"),
    ("#3d86c6", "2 4", "triangle"),
    ("#6aa544", "9 3 2 3", "diamond"),
    ("#e0a020", "5 3", "circle"),
    ("#b79be0", "1 3", "square"),
)


def write_curves(
    path: Path, title: str, value_name: str, curves: Mapping[str, Points], x_name: str = SECONDS, log_x: bool = True,
    from_zero: bool = False,
) -> None:  # fmt: skip
    """Writes the picture; curves without points are left out. Values begin with 0 if `from_zero`."""
    path.write_text(curves_svg(title, value_name, curves, x_name, log_x, from_zero), encoding="utf-8")


def curves_svg(
    title: str, value_name: str, curves: Mapping[str, Points], x_name: str = SECONDS, log_x: bool = True,
    from_zero: bool = False,
) -> str:  # fmt: skip
    """The picture as text. Every line's name and last value stand at its end, and its sample in the legend below."""
    shown = {name: sorted(points) for name, points in curves.items() if points}
    every = [point for points in shown.values() for point in points] or [(1.0, 0.0)]
    x = _Axis([max(at, LEAST) if log_x else at for at, _ in every], LEFT, WIDTH - RIGHT, log_x)
    y = _Axis([value for _, value in every] + [0.0] * from_zero, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(LEFT, 24, title, size=16, weight="bold"),
        *_frame(x, y, x_name, value_name),
    ]
    lines = [_Line(name, points, STYLES[i % len(STYLES)]) for i, (name, points) in enumerate(shown.items())]
    ends = _apart([y.place(line.points[-1][1]) for line in lines])
    for line, at in zip(lines, ends, strict=True):
        last, value = line.points[-1]
        parts.append(_path([(x.place(last), y.place(value)), (WIDTH - RIGHT + 8, at)], "#aaa", width=0.8))
        parts.append(line.marked(WIDTH - RIGHT + 15, at))
        shown_value = f"{value:.3f}" if value < MANY else f"{value:,.0f}"
        parts.append(_text(WIDTH - RIGHT + 24, at + 4, f"{shown_value} {line.name}"))
    for line in lines:
        parts += line.drawn(x, y)
    parts += _legend(lines)
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """Values to places between two ends, in pixels."""

    def __init__(self, values: Sequence[float], begin: float, end: float, log: bool = False) -> None:
        self.log, self._begin, self._end = log, begin, end
        low, high = min(values), max(values)
        self.ticks = _log_ticks(low, high) if log else _even_ticks(low, high)
        self._low, self._high = (self._scale(tick) for tick in (self.ticks[0], self.ticks[-1]))

    def place(self, value: float) -> float:
        share = (self._scale(max(value, LEAST) if self.log else value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def named(self, tick: float) -> str:
        """With as many digits as tell it from its neighbours."""
        if not self.log:
            return f"{tick:,.{max(0, -math.floor(math.log10(self.ticks[1] - self.ticks[0]) + 1e-9))}f}"
        return f"{tick:,.0f}" if tick >= 1 else f"{tick:g}"

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.log else value


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, or powers of ten alone where those are many, around the values."""
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
    steps = (1, 2, 5) if last - first <= 4 and high < 1e5 else (1,)  # else names of ticks would overlap
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    begin = max(i for i, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    end = min(i for i, tick in enumerate(ticks) if tick >= high and i > begin)
    return ticks[begin : end + 1]


def _even_ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers around the values."""
    wide = max(high - low, abs(high) * 1e-2, 1e-6)
    power = 10.0 ** math.floor(math.log10(wide / 4))
    step = next(times * power for times in (1, 2, 5, 10) if wide / (times * power) <= 6)
    begin = math.floor(low / step + 1e-9)
    end = max(math.ceil(high / step - 1e-9), begin + 1)
    return [i * step for i in range(begin, end + 1)]


class _Line:
    def __init__(self, name: str, points: Points, style: tuple[str, str, str]) -> None:
        self.name, self.points = name, points
        self.colour, self.dashes, self.mark = style

    def drawn(self, x: _Axis, y: _Axis) -> list[str]:
        places = [(x.place(at), y.place(value)) for at, value in self.points]
        marks = [self.marked(*place) for place in places]
        return [_path(places, self.colour, self.dashes), *marks] if len(places) > 1 else marks

    def marked(self, x: float, y: float) -> str:
        if self.mark == "circle":
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{self.colour}"/>'
        corners = {
            "square": [(-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)],
            "triangle": [(0, -4.8), (4.6, 3.6), (-4.6, 3.6)],
            "diamond": [(0, -5), (5, 0), (0, 5), (-5, 0)],
        }[self.mark]
        places = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
        return f'<polygon points="{places}" fill="{self.colour}"/>'


def _frame(x: _Axis, y: _Axis, x_name: str, value_name: str) -> list[str]:
    """Grid, ticks, and what the axes are."""
    right, bottom, parts = WIDTH - RIGHT, HEIGHT - BOTTOM, []
    for tick in y.ticks:
        at = y.place(tick)
        parts.append(_path([(LEFT, at), (right, at)], "#e4e4e4", width=1))
        parts.append(_text(LEFT - 8, at + 4, y.named(tick), anchor="end"))
    for tick in x.ticks:
        at = x.place(tick)
        parts.append(_path([(at, TOP), (at, bottom)], "#e4e4e4", width=1))
        parts.append(_text(at, bottom + 18, x.named(tick), anchor="middle"))
    parts.append(_path([(LEFT, TOP), (LEFT, bottom), (right, bottom)], "#222", width=1.2))
    parts.append(_text((LEFT + right) / 2, bottom + 38, x_name, anchor="middle"))
    parts.append(_text(8, TOP - 14, value_name))
    return parts


def _legend(lines: Sequence[_Line]) -> list[str]:
    """Samples of the lines with their names, in rows of three below the axes."""
    parts, column = [], (WIDTH - LEFT) / 3
    for i, line in enumerate(lines):
        at_x, at_y = LEFT + i % 3 * column, HEIGHT - 36 + i // 3 * LINE_HEIGHT
        parts.append(_path([(at_x, at_y), (at_x + 34, at_y)], line.colour, line.dashes))
        parts += [line.marked(at_x + 17, at_y), _text(at_x + 42, at_y + 4, line.name)]
    return parts


def _apart(places: Sequence[float]) -> list[float]:
    """The places, moved as little as it takes for text at them not to overlap, and to stay inside the axes."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    floor = float(TOP)
    for i in order:
        floor = moved[i] = max(moved[i], floor)
        floor += LINE_HEIGHT
    ceiling = float(HEIGHT - BOTTOM)
    for i in reversed(order):
        ceiling = moved[i] = min(moved[i], ceiling)
        ceiling -= LINE_HEIGHT
    return moved


def _path(places: Sequence[tuple[float, float]], colour: str, dashes: str = "", width: float = 2) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13, weight: str = "normal") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" font-weight="{weight}">{escape(text)}</text>'
