"""Line charts as SVG. Lines differ in colour, dashes and marks, and have their run's letter at the end, so that they
can be told apart in print and by everybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from dslide.report.axis import Axis
from dslide.report.curve import Point

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 26, 12, 36  # margins
LETTER_WIDTH, LETTER_HEIGHT = 16, 13
MOST_MARKED = 40  # points of a line that each get a mark
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 3")
COLOURS = 7  # defined in page.css


@dataclass(frozen=True)
class Line:
    """A curve of a run. Values are in the units of the chart."""

    run: int
    points: Sequence[Point]
    band: Sequence[Point] = ()  # what the points are means of, faintly
    each_marked: bool = False
    level: bool = False  # a thin line to compare with, without a mark


@dataclass(frozen=True)
class Stroke:
    """Something that happened to a run at x: a line from bottom to top, or only a tick at the bottom."""

    run: int
    x: float
    text: str
    tick: bool = False


def letter(run: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    return chr(ord("A") + run % 26) + (str(run // 26) if run >= 26 else "")


def classes(run: int) -> str:
    """Colour, and what is hidden with the run."""
    return f"c{run % COLOURS} of{run}"


def line_chart(
    label: str, lines: Sequence[Line], strokes: Sequence[Stroke], units: tuple[str, str], zero: bool, letters: bool
) -> str:
    """The chart; `label` says what it is to who can't see it, `units` are those of x and y."""
    every = [point for line in lines for point in [*line.points, *line.band]]
    shown = [line for line in lines if not line.level] or lines
    x = Axis([p[0] for line in shown for p in line.points] + [0.0], LEFT, WIDTH - RIGHT, 6)
    y = Axis([p[1] for p in every], HEIGHT - BOTTOM, TOP, 6, zero)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'data-x="{_scale(x)}" data-y="{_scale(y)}" data-units="{escape("|".join(units))}">',
        *_frame(x, y, units[0]),
    ]
    for stroke in strokes:
        if x.low <= stroke.x <= x.high:
            parts.append(_stroke(stroke, x.place(stroke.x)))
    for line in lines:
        parts += _drawn(line, x, y)
    if letters:
        parts += _letters({line.run: line for line in lines if not line.level}, x, y)
    parts.append(f'<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}" x1="-9" x2="-9"/></svg>')
    return "\n".join(parts)


def mark(run: int, x: float, y: float) -> str:
    """The run's mark at a place."""
    shape = (
        "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
        "M-3.2-3.2h6.4v6.4h-6.4z",
        "M0-4.4l4.2 7.4h-8.4z",
        "M0-4.6l4.6 4.6l-4.6 4.6l-4.6-4.6z",
        "M0 4.4l4.2-7.4h-8.4z",
    )[run % 5]
    return f'<path class="mark {classes(run)}" transform="translate({x:.1f} {y:.1f})" d="{shape}"/>'


def swatch(run: int) -> str:
    """A sample of the run's line."""
    return (
        f'<svg class="swatch" viewBox="0 0 40 12" width="40" height="12" aria-hidden="true">'
        f'<polyline class="c{run % COLOURS}" points="1,6 39,6"{_dashes(run)}/>{mark(run, 20, 6)}</svg>'
    )


def _drawn(line: Line, x: Axis, y: Axis) -> list[str]:
    own = classes(line.run)
    if line.level:
        return [f'<polyline class="level {own}" points="{_places(line.points, x, y)}"/>']
    parts = []
    if line.band:
        parts.append(f'<polygon class="band {own}" points="{_places(line.band, x, y)}"/>')
    places = _places(line.points, x, y)
    parts.append(f'<polyline class="line {own}" data-run="{letter(line.run)}" points="{places}"{_dashes(line.run)}/>')
    marked = line.points if line.each_marked and len(line.points) <= MOST_MARKED else line.points[-1:]
    return parts + [mark(line.run, x.place(at), y.place(value)) for at, value in marked]


def _letters(lines: Mapping[int, Line], x: Axis, y: Axis) -> list[str]:
    """Each run's letter beside the end of its line, moved as little as it takes for those not to overlap that end
    nearby."""
    ends = {run: (x.place(line.points[-1][0]), y.place(line.points[-1][1])) for run, line in lines.items()}
    placed: list[Point] = []
    parts = []
    for run, (at, height) in sorted(ends.items(), key=lambda end: end[1][1]):
        near = [other for left, other in placed if abs(left - at) < LETTER_WIDTH]
        height = max([height, *(other + LETTER_HEIGHT for other in near)])
        placed.append((at, height))
        parts.append(
            f'<text class="letter {classes(run)}" x="{at + 8:.1f}" y="{min(height, HEIGHT - 4) + 4:.1f}">'
            f"{letter(run)}</text>"
        )
    return parts


def _stroke(stroke: Stroke, at: float) -> str:
    top = HEIGHT - BOTTOM - 7 if stroke.tick else TOP
    kind = "tick" if stroke.tick else "event"
    return (
        f'<line class="{kind} {classes(stroke.run)}" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{HEIGHT - BOTTOM}">'
        f"<title>{letter(stroke.run)}: {escape(stroke.text)}</title></line>"
    )


def _frame(x: Axis, y: Axis, x_unit: str) -> list[str]:
    """Grid and ticks; the unit of x stands in the corner."""
    bottom, right, parts = HEIGHT - BOTTOM, WIDTH - RIGHT, []
    for tick in y.ticks:
        at = y.place(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y.shown(tick)}</text>')
    for tick in x.ticks:
        at = x.place(tick)
        parts.append(f'<line class="grid" y1="{TOP}" y2="{bottom}" x1="{at:.1f}" x2="{at:.1f}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{x.shown(tick)}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 30}" text-anchor="end">{escape(x_unit)}</text>')
    return parts


def _places(points: Sequence[Point], x: Axis, y: Axis) -> str:
    return " ".join(f"{x.place(at):.1f},{y.place(value):.1f}" for at, value in points)


def _dashes(run: int) -> str:
    dashes = DASHES[run % len(DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _scale(axis: Axis) -> str:
    return f"{axis.begin:g} {axis.end:g} {axis.low:g} {axis.high:g}"
