"""The page: a table of the runs, the charts, events, and what is not shown."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from dslide.config import Config
from dslide.report.charts import drawn_charts, sorted_metrics
from dslide.report.history import RunHistory
from dslide.report.svg import COLOURS, classes, colour, letter, sample
from dslide.util.units import clock, counted, format_bytes, metric_name

# The beginning of every page; a file that begins with it may be overwritten.
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="dslide report">"""
LONGEST_VALUE, MOST_OPTIONS = 60, 60  # characters of an option, and options of a run
CELLS = {  # CSS classes of columns in the table of runs
    **dict.fromkeys(("run", "data"), "free"),
    **dict.fromkeys(("time", "most memory", "measured"), "whole"),
    **dict.fromkeys(("samples/s", "loss"), "number"),
}


def page(runs: Sequence[RunHistory]) -> str:
    """The whole page. It loads nothing, and its policy lets no other script run, whatever the names of runs contain."""
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    title = f"dslide: {runs[0].name}" if len(runs) == 1 else f"dslide: {len(runs)} runs"
    colours = "".join(f".{colour(i)} {{ --c: {value}; }}\n" for i, value in enumerate(COLOURS))
    hiding = "".join(  # all parts of a run whose box is not ticked
        f"body:has(#show{i}:not(:checked)) .of{i} {{ display: none; }}\n" for i in range(len(runs)) if len(runs) > 1
    )
    drawn, missing = drawn_charts(runs)
    parts = [
        HEAD,
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{colours}{style}{hiding}</style>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
        _runs_table(runs),
        _options_table(runs),
        "<h2>Charts</h2>",
        '<p class="controls"><label><input type="checkbox" id="logarithmic"> logarithmic axis of losses</label></p>',
        '<div class="charts">',
        *drawn,
        "</div>",
        _metrics_table(runs),
        _events_table(runs),
        f'<p class="none">Not shown: {escape(" ".join(missing))}</p>' if missing else "",
        "<footer>Time is that of training, without tests. Ticks at the bottom of a chart are checkpoints, dashed "
        "vertical lines are events. Drag over a part of a chart to enlarge it.</footer>",
        f"<script>{script}</script>",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _runs_table(runs: Sequence[RunHistory]) -> str:
    rows = [_run_cells(i, run, len(runs) > 1) for i, run in enumerate(runs)]
    head = "".join(f'<th class="{CELLS.get(name, "")}">{name}</th>' for row in rows[:1] for name in row)
    lines = []
    for row in rows:
        cells = [
            f'<td data-label="{name}" class="{CELLS.get(name, "")}"><div>{cell}</div></td>'
            for name, cell in row.items()
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return _table("runs", head, lines)


def _run_cells(i: int, run: RunHistory, several: bool) -> dict[str, str]:
    """The cells of a run in the table of runs, by column."""
    size = 'class="swatch" viewBox="0 0 40 12" width="40" height="12"'
    legend = f'<svg {size} aria-hidden="true">{sample(i, 1, 6, 38)}</svg>'
    name = f'{legend} <span class="letter {colour(i)}">{letter(i)}</span> {escape(run.name)}'
    if several:
        name = f'<label><input type="checkbox" id="show{i}" checked> {name}</label>'
    hidden, threads = run.config.get("hidden"), _count(run.start.get("threads"))
    layers = [run.start.get("features"), *(hidden if isinstance(hidden, list) else []), run.start.get("labels")]
    starts = f"<br>{run.starts:,} starts" if run.starts > 1 else ""
    memory = "–" if run.peak_bytes is None else format_bytes(round(run.peak_bytes))
    if run.planned_bytes is not None:
        memory += f"<br>planned: {format_bytes(round(run.planned_bytes))}"
    metrics = [name for name in run.metrics if name.startswith("p_")] or list(run.metrics)[:3]
    return {
        "run": f"{name}<br>{run.state}",
        "data": f"{escape(_short(run.start.get('data', '–')))}<br>{_count(run.start.get('rows'))} rows",
        "network": f"{' × '.join(map(_count, layers[:20]))}<br>{_count(run.start.get('parameters'))} parameters",
        "ranks": f"{counted(run.ranks, 'rank')} × {threads} thread{'s' * (threads != '1')}",
        "time": f"{clock(run.seconds)}<br>{counted(run.step, 'step')}{starts}",
        "samples/s": f"{run.samples / run.seconds:,.0f}" if run.seconds > 0 and run.samples > 0 else "–",
        "most memory": memory,
        "loss": "–" if run.loss is None else f"{run.loss:.4g}",
        "measured": "<br>".join(f"{metric_name(name)} {run.metrics[name]:.4f}" for name in metrics[:6]) or "–",
    }


def _options_table(runs: Sequence[RunHistory]) -> str:
    """Options in which runs differ, or in which a single run differs from the defaults, with their values."""
    configs = [run.config for run in runs]
    heads = [f'<th class="{classes(i)}"><span class="letter">{letter(i)}</span></th>' for i in range(len(runs))]
    if alone := len(runs) == 1:
        configs.append(json.loads(json.dumps(Config().to_dict())))
        heads = ["<th>value</th>", "<th>default</th>"]
    names = dict.fromkeys(name for config in configs for name in config)
    differing = [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]
    lines = []
    for name in differing[:MOST_OPTIONS]:
        values = (escape(_short(config.get(name))) for config in configs)
        cells = "".join(f'<td class="free{f" of{i}" * (not alone)}">{value}</td>' for i, value in enumerate(values))
        lines.append(f"<tr><th>{escape(_short(name))}</th>{cells}</tr>")
    if not lines:
        return ""
    title = "Options other than defaults" if alone else "Options that differ"
    return f"<h2>{title}</h2>\n" + _table("small", f"<th>option</th>{''.join(heads)}", lines)


def _metrics_table(runs: Sequence[RunHistory]) -> str:
    """The newest value of every metric of every run."""
    having = [i for i, run in enumerate(runs) if run.metrics]
    if not having:
        return ""
    names = sorted_metrics(name for run in runs for name in run.metrics)
    lines = {metric_name(name): [runs[i].metrics.get(name) for i in having] for name in names}
    lines["loss over all labels"] = [runs[i].test_loss for i in having]

    def line(name: str, tag: str, cells: Iterable[str]) -> str:
        each = "".join(f'<{tag} class="number of{i}">{cell}</{tag}>' for i, cell in zip(having, cells, strict=True))
        return f"<th>{name}</th>{each}"

    body = [line(name, "td", ("–" if x is None else f"{x:.4f}" for x in row)) for name, row in lines.items()]
    table = _table("small", line("", "th", map(letter, having)), [f"<tr>{cells}</tr>" for cells in body])
    return f"<h2>On test data, measured last</h2>\n{table}"


def _events_table(runs: Sequence[RunHistory]) -> str:
    """Restarts, resumes and lost nodes."""
    lines = []
    for i, run in enumerate(runs):
        lines += [
            f'<tr class="of{i}"><td class="letter {classes(i)}">{letter(i)}</td><td class="number">'
            f'{clock(moment.seconds)}</td><td class="number">{moment.step:,.0f}</td><td>{escape(moment.text)}</td></tr>'
            for moment in sorted(run.events, key=lambda moment: moment.seconds)
        ]
        if run.events_total > len(run.events):
            words = f"The last {len(run.events)} of {run.events_total:,}."
            lines.append(f'<tr class="of{i}"><td colspan="4">{words}</td></tr>')
    if not lines:
        return ""
    head = '<th>run</th><th class="number">time</th><th class="number">step</th><th>what</th>'
    return "<h2>Events</h2>\n" + _table("small", head, lines)


def _table(kind: str, head: str, lines: Sequence[str]) -> str:
    body = "\n".join(["<tbody>", *lines, "</tbody>"])
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>\n{body}</table></div>'


def _count(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:,.0f}" if is_number and abs(value) < 1e18 else "–"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
