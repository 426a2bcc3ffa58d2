"""The charts of a report: what each shows of the runs, and why some are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from dslide.report.bars import bucket_bars, phase_bars, rank_bars
from dslide.report.curve import Point, smoothed
from dslide.report.history import METRIC, RunHistory
from dslide.report.svg import EventLine, Line, classes, letter, line_chart
from dslide.util.units import METRIC_NAMES, metric_name

TIME = ((1, "s"), (60, "min"), (3600, "h"), (86400, "days"))
BYTES = ((1, "bytes"), (1e3, "KB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
COUNT = ((1, ""), (1e6, "million "), (1e9, "billion "))
PLAIN = ((1, ""),)
Units = tuple[tuple[float, str], ...]


BARS = (  # title, unit, about, why not, and what draws them
    ("Ranks", "s", "Seconds of computing (solid) and of waiting for other ranks (striped) since the last start.",
     "only runs on several ranks have it, once they have ended", rank_bars),
    ("Bucket occupancy", "share of neurons", "Neurons of rank 0 by the number of neurons in their hash bucket, "
     "after the last rebuild in the log.", "no layer was sampled through hash tables", bucket_bars),
    ("Phases of a step", "ms", "Time of each phase in a step.", "no run was trained with --profile", phase_bars),
)  # fmt: skip


@dataclass(frozen=True)
class Chart:
    """Lines over time or samples."""

    curve: str  # its name in RunHistory.curves
    title: str
    about: str
    why_not: str  # shown if no run has it
    unit: str = ""
    units: Units = PLAIN
    samples: bool = False  # over samples, not time
    smooth: bool = False
    zero: bool = False  # y begins at 0
    each_marked: bool = False
    log: bool = False  # drawn with a logarithmic axis too
    events: bool = False  # checkpoints and events are drawn too


def unit(units: Units, most: float) -> tuple[float, str]:
    """The largest unit of which the largest number is at least 3, and its name."""
    return [each for each in units if each is units[0] or most >= 3 * each[0]][-1]


def sorted_metrics(names: Iterable[str]) -> list[str]:
    """Those of the names that are metrics, each once, by kind and k."""
    found = {
        (list(METRIC_NAMES).index(match[1]), int(match[2])): name for name in names if (match := METRIC.fullmatch(name))
    }
    return [name for _, name in sorted(found.items())]


def shown_metrics(runs: Sequence[RunHistory]) -> list[str]:
    """Metrics that get a chart: P at the smallest k and R at the largest that were measured."""
    found = sorted_metrics(name for run in runs for name in run.tests)
    precision, recall = ([name for name in found if name.startswith(kind)] for kind in ("p_", "r_"))
    return precision[:1] + recall[-1:] or found[:1]


def charts(runs: Sequence[RunHistory]) -> list[Chart]:
    """All charts of lines, in the order of the page."""
    untested = "nothing was measured on test data (dslide train --test, --test-every)"
    accuracy = [
        Chart(name, metric_name(name), "On test data; tests on the same number of rows are joined by lines.", untested,
              each_marked=True, events=True)
        for name in shown_metrics(runs) or ["p_at_1"]
    ]  # fmt: skip
    old = "the log has no such values: no step was done"
    alone = "only runs on several ranks exchange anything"
    return [
        *accuracy,
        Chart("validation", "Held-out rows", "nDCG after each epoch on rows held out of training; the best network is "
              "kept.", "no rows were held out to choose the best epoch", each_marked=True, events=True),
        Chart("loss", "Loss over time", "Of single batches (faint), and smoothed.", old, smooth=True, log=True,
              events=True),
        Chart("loss over samples", "Loss over samples", "The same against the rows trained on.",
              old, samples=True, smooth=True, log=True),
        Chart("test loss", "Test loss", "Over all labels, on test data.", untested, each_marked=True, log=True),
        Chart("speed", "Speed", "Rows trained on in a second; faint: lowest and highest.", old, "samples/s",
              smooth=True, zero=True, events=True),
        Chart("bytes", "Sent in a step", "By rank 0 to all others.", alone, "", BYTES, zero=True),
        Chart("waiting", "Waiting", "Share of time in which rank 0 waited for other ranks.", alone, "%",
              smooth=True, zero=True),
        Chart("active", "Active neurons", "Output neurons computed for a row in a step.", old, "neurons", COUNT,
              smooth=True, zero=True),
        Chart("retrieval", "Labels found", "Share of the best labels of some rows that look-up in cells finds, after "
              "each rebuild.", "no neurons were looked up in cells", "%", each_marked=True),
        Chart("memory", "Memory", "Resident memory of rank 0; dotted: planned.", old, "", BYTES, zero=True),
    ]  # fmt: skip


def drawn_charts(runs: Sequence[RunHistory]) -> tuple[list[str], list[str]]:
    """The charts as HTML, and a sentence about each that is missing."""
    every = [(chart.title, chart.why_not, _drawn(chart, runs)) for chart in charts(runs)]
    for title, unit_name, about, why_not, draw in BARS:
        bars = draw(runs)
        lacking = [i for i in range(len(runs)) if i not in bars]
        html = _figure(title, unit_name, "\n".join(bars.values()), about, lacking) if bars else ""
        every.append((title, why_not, html))
    return [html for *_, html in every if html], [f"{title}: {why}." for title, why, html in every if not html]


def _drawn(chart: Chart, runs: Sequence[RunHistory]) -> str:
    """The chart as HTML; empty if no run has it."""
    curves = [(i, curve) for i, run in enumerate(runs) for curve in run.pieces(chart.curve)]
    if not curves:
        return ""
    planned = {i: runs[i].planned_bytes or 0.0 for i in dict(curves) if chart.curve == "memory"}
    most_x = max(x for _, curve in curves for x, _ in curve.means)
    most_y = max([*(abs(y) for _, curve in curves for _, y in curve.band), *planned.values()])
    x_scale, x_name = unit(COUNT if chart.samples else TIME, most_x)
    y_scale, y_name = unit(chart.units, most_y)

    def scaled(points: Sequence[Point]) -> list[Point]:
        return [(x / x_scale, y / y_scale) for x, y in points]

    lines = [Line(i, scaled([(0, value), (most_x, value)]), level=True) for i, value in planned.items() if value]
    for i, curve in curves:
        points = smoothed(curve.means) if chart.smooth else curve.means
        many = len(curve) > 2 and not chart.each_marked
        lines.append(Line(i, scaled(points), scaled(curve.band) if many else (), chart.each_marked))
    events = [
        EventLine(i, moment.seconds / x_scale, moment.text, tick)
        for i, run in enumerate(runs if chart.events else ())
        for moments, tick in ((run.checkpoints, True), (run.events, False))
        for moment in moments
    ]
    units = (x_name + "samples" if chart.samples else f"{x_name} of training", y_name + chart.unit)
    last = ", ".join(f"{letter(i)} {curve.means[-1][1] / y_scale:.4g}" for i, curve in dict(curves).items())
    label = f"{chart.title}, at the end: {last} {units[1]}"
    lacking = [i for i in range(len(runs)) if i not in dict(curves)]
    html = line_chart(label, lines, events, units, chart.zero, len(runs) > 1)
    if chart.log and all(y > 0 for _, curve in curves for _, y in curve.band):
        log = line_chart(f"{label}, logarithmic", lines, events, units, chart.zero, len(runs) > 1, log=True)
        html = f'<div class="linear">{html}</div>\n<div class="log">{log}</div>'
    html += '\n<output></output> <button type="button" hidden>whole chart</button>'
    return _figure(chart.title, units[1], html, chart.about, lacking)


def _figure(title: str, unit_name: str, body: str, about: str, lacking: Sequence[int]) -> str:
    """A chart with its title and text; `lacking` are the runs that are not in it."""
    small = f" <small>{escape(unit_name)}</small>" if unit_name.strip() else ""
    if lacking:
        names = ", ".join(f'<span class="letter {classes(i)}">{letter(i)}</span>' for i in lacking)
        about += f" No data of {names}."
    return f'<figure>\n<h3>{escape(title)}{small}</h3>\n{body}\n<p class="about">{about}</p>\n</figure>'
