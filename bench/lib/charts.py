"""A line chart as an SVG file of its own: a line for each system, its name and last value at its end, and a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dslide.report.svg import COLOURS, Axis, Box, Line, LogAxis, colour, draw, grid, marker, sample, text

Points = Sequence[tuple[float, float]]  # x, value
SECONDS = "seconds of training"

BOX = Box(880, 470, left=64, right=256, top=58, bottom=96)  # on the right are the names of lines
TICKS = 9
LEAST_SECONDS = 1e-3  # on a logarithmic axis; smaller values are drawn there
LINE_HEIGHT = 17
MANY = 100  # from which values are shown without a fraction
STYLE = (
    "text { font: 13px Helvetica, Arial, sans-serif; fill: #222; } .title { font-size: 16px; font-weight: bold; } "
    ".grid { stroke: #e4e4e4; } .leader { stroke: #aaa; stroke-width: .8; } .ground { fill: #fff; } "
    ".line, .sample { fill: none; stroke-width: 2; } .marker { stroke: #fff; stroke-width: .8; } "
) + " ".join(
    f".line.{colour(i)}, .sample.{colour(i)} {{ stroke: {value}; }} .marker.{colour(i)} {{ fill: {value}; }}"
    for i, value in enumerate(COLOURS)
)


def write_chart(
    path: Path, title: str, y_name: str, curves: Mapping[str, Points], x_name: str = SECONDS, log_x: bool = True,
    zero: bool = False,
) -> None:  # fmt: skip
    """Writes the chart; curves without points are left out. `zero`: the y axis includes 0."""
    path.write_text(chart_svg(title, y_name, curves, x_name, log_x, zero), encoding="utf-8")


def chart_svg(
    title: str, y_name: str, curves: Mapping[str, Points], x_name: str = SECONDS, log_x: bool = True,
    zero: bool = False,
) -> str:  # fmt: skip
    """The chart as text."""
    names = [name for name, points in curves.items() if points]
    lines = [Line(i, sorted(curves[name]), each_marked=True) for i, name in enumerate(names)]
    every = [point for line in lines for point in line.points] or [(1.0, 0.0)]
    xs = [at for at, _ in every]
    x = LogAxis([max(at, LEAST_SECONDS) for at in xs], *BOX.sides) if log_x else Axis(xs, *BOX.sides, TICKS)
    y = Axis([value for _, value in every], *BOX.ends, TICKS, zero)
    (left, right), (bottom, top) = BOX.sides, BOX.ends
    size = f'width="{BOX.width}" height="{BOX.height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {BOX.width} {BOX.height}">',
        f'<style>{STYLE}</style><rect class="ground" {size}/>',
        text(left, 24, title, kind="title"),
        *grid(x, y),
        text((left + right) / 2, bottom + 38, x_name, "middle"),
        text(8, top - 14, y_name),
    ]
    heights = _apart([y.position(line.points[-1][1]) for line in lines])
    for line, name, at in zip(lines, names, heights, strict=True):
        last, value = line.points[-1]
        begin = f'x1="{x.position(last):.1f}" y1="{y.position(value):.1f}"'
        parts.append(f'<line class="leader" {begin} x2="{right + 8}" y2="{at:.1f}"/>')
        parts.append(marker(line.run, right + 15, at, colour(line.run)))
        parts.append(text(right + 24, at + 4, f"{value:.3f} {name}" if value < MANY else f"{value:,.0f} {name}"))
    for line in lines:
        parts += draw(line, x, y)
    for i, name in enumerate(names):  # the legend, in rows of three
        at_x, at_y = left + i % 3 * (BOX.width - left) / 3, BOX.height - 36 + i // 3 * LINE_HEIGHT
        parts += [sample(i, at_x, at_y, 34), text(at_x + 42, at_y + 4, name)]
    return "\n".join([*parts, "</svg>", ""])


def _apart(heights: Sequence[float]) -> list[float]:
    """The heights, moved so that lines of text at them do not overlap and stay beside the y axis."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved = list(heights)
    lowest, highest = map(float, BOX.ends)
    for i in order:
        highest = moved[i] = max(moved[i], highest)
        highest += LINE_HEIGHT
    for i in reversed(order):
        lowest = moved[i] = min(moved[i], lowest)
        lowest -= LINE_HEIGHT
    return moved
