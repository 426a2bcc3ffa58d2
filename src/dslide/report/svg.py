"""Line charts as SVG. Lines differ in colour, dashes and markers, so that they can be distinguished in print and by
everybody. Colours come from a style sheet: class c0, c1, ... of an element is the colour of its line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from dslide.report.curve import Point

COLOURS = ("#0072b2", "#c04b00", "#00795a", "#b04a86", "#a06a00", "#2a8fd0", "#333")  # on a light ground
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 3")
MARKERS = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "M-3.2-3.2h6.4v6.4h-6.4z",
    "M0-4.4l4.2 7.4h-8.4z",
    "M0-4.6l4.6 4.6l-4.6 4.6l-4.6-4.6z",
    "M0 4.4l4.2-7.4h-8.4z",
)
LETTER_WIDTH, LETTER_HEIGHT = 16, 13
MOST_MARKED = 40  # points of a line that each get a marker


@dataclass(frozen=True)
class Box:
    """The size of a chart and its margins, in pixels."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int

    @property
    def sides(self) -> tuple[int, int]:
        """Left and right end of the x axis."""
        return self.left, self.width - self.right

    @property
    def ends(self) -> tuple[int, int]:
        """Lower and upper end of the y axis."""
        return self.height - self.bottom, self.top


PAGE_BOX = Box(440, 250, left=56, right=26, top=12, bottom=36)


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


class LogAxis(Axis):
    """An axis of positive values on which every power of ten has the same length. Its ticks are 1, 2 and 5 times powers
    of ten around the values, or only powers of ten where labels would overlap. Smaller values are drawn at
    its begin."""

    def __init__(self, values: Iterable[float], begin: float, end: float) -> None:
        found = [*values]
        low, high = min(found), max(found)
        first, last = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
        steps = (1, 2, 5) if last - first <= 4 and high < 1e5 else (1,)
        ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        lowest = max(i for i, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
        highest = min(i for i, tick in enumerate(ticks) if tick >= high and i > lowest)
        self.begin, self.end, self.ticks = begin, end, ticks[lowest : highest + 1]
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def position(self, value: float) -> float:
        low, high, at = (math.log10(max(number, self.low)) for number in (self.low, self.high, value))
        return self.begin + (at - low) / (high - low) * (self.end - self.begin)

    def label(self, tick: float) -> str:
        return tick_label(tick, tick)


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


@dataclass(frozen=True)
class Line:
    """A curve of a run. Values are in the units of the chart."""

    run: int
    points: Sequence[Point]
    band: Sequence[Point] = ()  # outline of the lowest and highest values, drawn faintly
    each_marked: bool = False
    level: bool = False  # a thin line to compare with, without a marker


@dataclass(frozen=True)
class EventLine:
    """An event of a run at x: a line from bottom to top, or only a tick at the bottom."""

    run: int
    x: float
    text: str
    tick: bool = False


def letter(run: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    return chr(ord("A") + run % 26) + (str(run // 26) if run >= 26 else "")


def colour(run: int) -> str:
    """The CSS class of the run's colour."""
    return f"c{run % len(COLOURS)}"


def classes(run: int) -> str:
    """CSS classes of what is hidden with the run."""
    return f"{colour(run)} of{run}"


def line_chart(
    label: str, lines: Sequence[Line], events: Sequence[EventLine], units: tuple[str, str], zero: bool, letters: bool,
    log: bool = False,
) -> str:  # fmt: skip
    """The chart; `label` describes it to screen readers, `units` are those of x and y. `letters`: each run's letter
    stands at the end of its line. `log`: y is logarithmic."""
    box = PAGE_BOX
    x = Axis([p[0] for line in lines if not line.level for p in line.points], *box.sides, zero=True)
    heights = [p[1] for line in lines for p in [*line.points, *line.band]]
    y = LogAxis(heights, *box.ends) if log else Axis(heights, *box.ends, zero=zero)
    left, top, width, height = box.left, box.top, x.end - x.begin, y.begin - y.end
    parts = [
        f'<svg class="chart" viewBox="0 0 {box.width} {box.height}" role="img" aria-label="{escape(label)}" '
        f'data-x="{_scale(x)}" data-y="{_scale(y)}" data-units="{escape("|".join(units))}"{" data-log" * log}>',
        '<g class="axes">',
        *grid(x, y),
        "</g>",
        text(box.width - box.right, box.height - 6, units[0], "end"),
        f'<svg class="plot" x="{left}" y="{top}" width="{width:g}" height="{height:g}" '
        f'viewBox="{left} {top} {width:g} {height:g}">',
        *(_event(event, x.position(event.x)) for event in events if x.low <= event.x <= x.high),
    ]
    for line in lines:
        parts += draw(line, x, y)
    if letters:
        parts += _letters({line.run: line for line in lines if not line.level}, x, y)
    parts.append("</svg>")
    parts.append(f'<line class="cursor" y1="{box.top}" y2="{box.height - box.bottom}" x1="-9" x2="-9"/></svg>')
    return "\n".join(parts)


def marker(run: int, x: float, y: float, own: str) -> str:
    """The run's marker at a position; `own` are CSS classes."""
    return f'<path class="marker {own}" transform="translate({x:.1f} {y:.1f})" d="{MARKERS[run % len(MARKERS)]}"/>'


def sample(run: int, x: float, y: float, length: float) -> str:
    """A sample of the run's line for a legend: it begins at (x, y)."""
    own, points = colour(run), f"{x:.1f},{y:.1f} {x + length:.1f},{y:.1f}"
    return f'<polyline class="sample {own}" points="{points}"{_dashes(run)}/>{marker(run, x + length / 2, y, own)}'


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Text at a position, which is its start, middle or end; `kind` is its CSS class."""
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def grid(x: Axis, y: Axis) -> list[str]:
    """Grid lines and the labels of ticks."""
    parts = []
    for at, label in ((y.position(tick), y.label(tick)) for tick in y.ticks):
        parts.append(f'<line class="grid" x1="{x.begin}" x2="{x.end}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(text(x.begin - 6, at + 4, label, "end"))
    for at, label in ((x.position(tick), x.label(tick)) for tick in x.ticks):
        parts.append(f'<line class="grid" y1="{y.end}" y2="{y.begin}" x1="{at:.1f}" x2="{at:.1f}"/>')
        parts.append(text(at, y.begin + 15, label, "middle"))
    return parts


def draw(line: Line, x: Axis, y: Axis) -> list[str]:
    """The line with its band and markers."""
    own, points = classes(line.run), _positions(line.points, x, y)
    if line.level:
        return [f'<polyline class="level {own}" points="{points}"/>']
    parts = [f'<polygon class="band {own}" points="{_positions(line.band, x, y)}"/>'] if line.band else []
    parts.append(f'<polyline class="line {own}" data-run="{letter(line.run)}" points="{points}"{_dashes(line.run)}/>')
    marked = line.points if line.each_marked and len(line.points) <= MOST_MARKED else line.points[-1:]
    return parts + [marker(line.run, x.position(at), y.position(value), own) for at, value in marked]


def _letters(lines: Mapping[int, Line], x: Axis, y: Axis) -> list[str]:
    """Each run's letter beside the end of its line, moved down as far as letters nearby require."""
    ends = {run: (x.position(line.points[-1][0]), y.position(line.points[-1][1])) for run, line in lines.items()}
    placed: list[Point] = []
    parts = []
    for run, (at, height) in sorted(ends.items(), key=lambda end: end[1][1]):
        near = [other for left, other in placed if abs(left - at) < LETTER_WIDTH]
        height = max([height, *(other + LETTER_HEIGHT for other in near)])
        placed.append((at, height))
        parts.append(text(at + 8, min(height, PAGE_BOX.height - 4) + 4, letter(run), kind=f"letter {classes(run)}"))
    return parts


def _event(event: EventLine, at: float) -> str:
    bottom, top = PAGE_BOX.ends
    kind, top = ("tick", bottom - 7) if event.tick else ("event", top)
    place = f'x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"'
    title = f"<title>{letter(event.run)}: {escape(event.text)}</title>"
    return f'<line class="{kind} {classes(event.run)}" {place}>{title}</line>'


def _positions(points: Sequence[Point], x: Axis, y: Axis) -> str:
    return " ".join(f"{x.position(at):.2f},{y.position(value):.2f}" for at, value in points)  # finer, to be enlarged


def _dashes(run: int) -> str:
    dashes = DASHES[run % len(DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _scale(axis: Axis) -> str:
    return f"{axis.begin:g} {axis.end:g} {axis.low:g} {axis.high:g}"
