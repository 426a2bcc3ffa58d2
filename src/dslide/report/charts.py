"""The charts of a report: what each shows of the runs, and why some are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from dslide.report.axis import BYTES, COUNT, PLAIN, TIME, Units, unit
from dslide.report.bars import bucket_bars, phase_bars, rank_bars
from dslide.report.curve import Point, smoothed
from dslide.report.history import METRIC, RunHistory
from dslide.report.svg import EventLine, Line, classes, letter, line_chart

NAMES = {"p": "P", "r": "R", "ndcg": "nDCG", "psp": "PSP"}


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
    events: bool = False  # checkpoints and events are drawn too


def metric_name(name: str) -> str:
    """Like P@1, of p_at_1."""
    kind, k = name.split("_at_")
    return f"{NAMES[kind]}@{k}"


def shown_metrics(runs: Sequence[RunHistory]) -> list[str]:
    """Metrics that get a chart: P at the smallest k and R at the largest that were measured."""
    found = {name for run in runs for name in run.tests if METRIC.fullmatch(name)}
    by_k = sorted(found, key=lambda name: int(name.split("_at_")[1]))
    precision, recall = ([name for name in by_k if name.startswith(f"{kind}_")] for kind in ("p", "r"))
    return precision[:1] + recall[-1:] or by_k[:1]


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
        Chart("loss", "Loss over time", "Of single batches (faint), and smoothed.", old, smooth=True, events=True),
        Chart("loss over samples", "Loss over samples", "The same against the rows trained on.",
              old, samples=True, smooth=True),
        Chart("test loss", "Test loss", "Over all labels, on test data.", untested, each_marked=True),
        Chart("speed", "Speed", "Rows trained on in a second; faint: lowest and highest.", old, "samples/s",
              smooth=True, zero=True, events=True),
        Chart("bytes", "Sent in a step", "By rank 0 to all others.", alone, "", BYTES, zero=True),
        Chart("waiting", "Waiting", "Share of time in which rank 0 waited for other ranks.", alone, "%",
              smooth=True, zero=True),
        Chart("active", "Active neurons", "Output neurons computed for a row in a step.", old, "neurons", COUNT,
              smooth=True, zero=True),
        Chart("memory", "Memory", "Resident memory of rank 0; dotted: planned.", old, "", BYTES, zero=True),
    ]  # fmt: skip


def drawn_charts(runs: Sequence[RunHistory]) -> tuple[list[str], list[str]]:
    """The charts as HTML, and a sentence about each that is missing."""
    drawn: list[str] = []
    missing: list[str] = []
    for chart in charts(runs):
        having = [i for i, run in enumerate(runs) if run.pieces(chart.curve)]
        if having:
            drawn.append(_drawn(chart, runs, having))
        else:
            missing.append(f"{chart.title}: {chart.why_not}.")
    bars: tuple[tuple[str, str, str, str, Callable[[Sequence[RunHistory]], dict[int, str]]], ...] = (
        ("Ranks", "s", "Seconds of computing (solid) and of waiting for other ranks (striped) since the last start.",
         "only runs on several ranks have it, once they have ended", rank_bars),
        ("Bucket occupancy", "share of neurons", "Neurons of rank 0 by the number of neurons in their hash bucket, "
         "after the last rebuild in the log.", "no layer was sampled through hash tables", bucket_bars),
        ("Phases of a step", "ms", "Time of each phase in a step.", "no run was trained with --profile", phase_bars),
    )  # fmt: skip
    for title, unit_name, about, why_not, draw in bars:
        found = draw(runs)
        if found:
            drawn.append(_figure(title, unit_name, "\n".join(found.values()), about + _without(runs, list(found))))
        else:
            missing.append(f"{title}: {why_not}.")
    return drawn, missing


def _drawn(chart: Chart, runs: Sequence[RunHistory], having: Sequence[int]) -> str:
    curves = [(i, curve) for i in having for curve in runs[i].pieces(chart.curve)]
    most_x = max(x for _, curve in curves for x, _ in curve.means)
    most_y = max(abs(y) for _, curve in curves for _, y in curve.band)
    planned = {i: runs[i].planned_bytes for i in having} if chart.curve == "memory" else {}
    most_y = max([most_y, *(value for value in planned.values() if value)])
    x_scale, x_name = unit(COUNT if chart.samples else TIME, most_x)
    y_scale, y_name = unit(chart.units, most_y)

    def scaled(points: Sequence[Point]) -> list[Point]:
        return [(x / x_scale, y / y_scale) for x, y in points]

    lines = [Line(i, scaled([(0, value), (most_x, value)]), level=True) for i, value in planned.items() if value]
    for i, curve in curves:
        points = smoothed(curve.means) if chart.smooth else curve.means
        many = len(curve) > 2 and not chart.each_marked
        lines.append(Line(i, scaled(points), scaled(curve.band) if many else (), chart.each_marked))
    events: list[EventLine] = []
    for i, run in enumerate(runs if chart.events else ()):
        events += [EventLine(i, moment.seconds / x_scale, moment.text, tick=True) for moment in run.checkpoints]
        events += [EventLine(i, moment.seconds / x_scale, moment.text) for moment in run.events]
    units = (x_name + "samples" if chart.samples else f"{x_name} of training", y_name + chart.unit)
    last = ", ".join(f"{letter(i)} {curve.means[-1][1] / y_scale:.4g}" for i, curve in dict(curves).items())
    label = f"{chart.title}, at the end: {last} {units[1]}"
    html = line_chart(label, lines, events, units, chart.zero, len(runs) > 1)
    return _figure(chart.title, units[1], html + "\n<output></output>", chart.about + _without(runs, having))


def _figure(title: str, unit_name: str, body: str, about: str) -> str:
    small = f" <small>{escape(unit_name)}</small>" if unit_name.strip() else ""
    return f'<figure>\n<h3>{escape(title)}{small}</h3>\n{body}\n<p class="about">{about}</p>\n</figure>'


def _without(runs: Sequence[RunHistory], having: Sequence[int]) -> str:
    lacking = [i for i in range(len(runs)) if i not in having]
    names = ", ".join(f'<span class="letter {classes(i)}">{letter(i)}</span>' for i in lacking)
    return f" No data of {names}." if lacking else ""
