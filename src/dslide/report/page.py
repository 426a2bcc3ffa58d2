"""The page: a table of the runs, the charts, events, and what is not shown."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from dslide.config import Config
from dslide.report.figures import figures, metric_name
from dslide.report.run import Run
from dslide.report.svg import COLOURS, classes, letter, swatch
from dslide.util.units import clock, format_bytes

# What a page begins with; a file that begins so was written by us, and may be written again.
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="dslide report">"""
LONGEST_VALUE = 60  # characters of an option
MOST_OPTIONS = 60


def page(runs: Sequence[Run]) -> str:
    """The whole page. Nothing is loaded from anywhere, and no script runs but ours, whatever a run is named."""
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    title = f"dslide: {runs[0].name}" if len(runs) == 1 else f"dslide: {len(runs)} runs"
    drawn, missing = figures(runs)
    parts = [
        HEAD,
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{style}{_hiding(len(runs))}</style>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
        _runs_table(runs),
        "<h2>Charts</h2>",
        '<div class="charts">',
        *drawn,
        "</div>",
        _metrics_table(runs),
        _events_table(runs),
        f'<p class="none">Not shown: {escape(" ".join(missing))}</p>' if missing else "",
        "<footer>Time is that spent in training, without testing. Ticks at the bottom of a chart are checkpoints, "
        "dashed lines from top to bottom are events.</footer>",
        f"<script>{script}</script>",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _hiding(runs: int) -> str:
    """Rules that hide what belongs to a run whose box is not ticked."""
    boxes = range(runs if runs > 1 else 0)
    return "".join(f"body:has(#show{i}:not(:checked)) .of{i} {{ display: none; }}\n" for i in boxes)


def _runs_table(runs: Sequence[Run]) -> str:
    options = "options that differ" if len(runs) > 1 else "options other than defaults"
    differing = _differing(runs)
    heads = ("run", "data", "network", "ranks", "time", "samples/s", "most memory", "loss", "measured", options)
    kinds = {"samples/s": "number", "loss": "number", "run": "free", "data": "free", options: "free"}
    kinds |= dict.fromkeys(("time", "most memory", "measured"), "whole")
    lines = []
    for i, run in enumerate(runs):
        cells = (
            _named(i, run, len(runs) > 1), _data(run), _network(run), _ranks(run), _time(run),
            f"{run.samples / run.seconds:,.0f}" if run.seconds > 0 and run.samples > 0 else "–",
            _memory(run), "–" if run.loss is None else f"{run.loss:.4g}", _measured(run), _options(run, differing),
        )  # fmt: skip
        lines.append(
            "<tr>" + "".join(
                f'<td data-label="{head}" class="{kinds.get(head, "")}"><div>{cell}</div></td>'
                for head, cell in zip(heads, cells, strict=True)
            ) + "</tr>"
        )  # fmt: skip
    head = "".join(f'<th class="{kinds.get(name, "")}">{name}</th>' for name in heads)
    return _table("runs", head, lines)


def _named(i: int, run: Run, several: bool) -> str:
    name = f'{swatch(i)} <span class="letter c{i % COLOURS}">{letter(i)}</span> {escape(run.name)}'
    if not several:
        return f"{name}<br>{run.state}"
    return f'<label><input type="checkbox" id="show{i}" checked> {name}</label><br>{run.state}'


def _data(run: Run) -> str:
    rows = _count(run.start.get("rows"))
    return f"{escape(_short(run.start.get('data', '–')))}<br>{rows} rows"


def _network(run: Run) -> str:
    hidden = run.config.get("hidden")
    layers = [run.start.get("features"), *(hidden if isinstance(hidden, list) else []), run.start.get("labels")]
    words = " × ".join(_count(layer) for layer in layers[:20])
    return f"{words}<br>{_count(run.start.get('parameters'))} parameters"


def _ranks(run: Run) -> str:
    ranks, threads = f"{run.ranks:,} rank{'s' * (run.ranks != 1)}", _count(run.start.get("threads"))
    return f"{ranks} × {threads} thread{'s' * (threads != '1')}"


def _time(run: Run) -> str:
    starts = f"<br>{run.starts:,} starts" if run.starts > 1 else ""
    return f"{clock(run.seconds)}<br>{run.step:,.0f} step{'s' * (run.step != 1)}{starts}"


def _memory(run: Run) -> str:
    peak = "–" if run.peak_bytes is None else format_bytes(round(run.peak_bytes))
    return peak if run.planned_bytes is None else f"{peak}<br>planned: {format_bytes(round(run.planned_bytes))}"


def _measured(run: Run) -> str:
    names = [name for name in run.metrics if name.startswith("p_")] or list(run.metrics)[:3]
    return "<br>".join(f"{metric_name(name)} {run.metrics[name]:.4f}" for name in names[:6]) or "–"


def _differing(runs: Sequence[Run]) -> list[str]:
    """Options in which runs differ, or in which the only run differs from the defaults."""
    configs = [run.config for run in runs]
    if len(configs) == 1:
        configs.append(json.loads(json.dumps(Config().to_dict())))
    names = list(dict.fromkeys(name for config in configs for name in config))
    return [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]


def _options(run: Run, names: Sequence[str]) -> str:
    shown = [f"{escape(_short(name))} {escape(_short(run.config.get(name)))}" for name in names[:MOST_OPTIONS]]
    return ", ".join(shown) or "none"


def _metrics_table(runs: Sequence[Run]) -> str:
    """Every metric of every run as it was last measured."""
    kinds = ("p", "r", "ndcg", "psp")
    found = {name for run in runs for name in run.metrics}
    names = sorted(found, key=lambda name: (kinds.index(name.split("_")[0]), int(name.split("_at_")[1])))
    having = [i for i, run in enumerate(runs) if run.metrics]
    if not having:
        return ""
    head = "".join(f'<th class="number of{i}">{letter(i)}</th>' for i in having)
    lines = [_metric_line(metric_name(name), [(i, runs[i].metrics.get(name)) for i in having]) for name in names]
    lines.append(_metric_line("loss over all labels", [(i, runs[i].test_loss) for i in having]))
    return "<h2>On test data, measured last</h2>\n" + _table("small", f"<th></th>{head}", lines)


def _metric_line(name: str, values: Sequence[tuple[int, float | None]]) -> str:
    cells = "".join(f'<td class="number of{i}">{"–" if value is None else f"{value:.4f}"}</td>' for i, value in values)
    return f"<tr><th>{name}</th>{cells}</tr>"


def _events_table(runs: Sequence[Run]) -> str:
    """What happened to runs that were started again, resumed or lost machines."""
    lines = []
    for i, run in enumerate(runs):
        for mark in sorted(run.events, key=lambda mark: mark.seconds):
            lines.append(
                f'<tr class="of{i}"><td class="letter {classes(i)}">{letter(i)}</td><td class="number">'
                f'{clock(mark.seconds)}</td><td class="number">{mark.step:,.0f}</td><td>{escape(mark.text)}</td></tr>'
            )
        if run.events_total > len(run.events):
            words = f"The last {len(run.events)} of {run.events_total:,}."
            lines.append(f'<tr class="of{i}"><td colspan="4">{words}</td></tr>')
    if not lines:
        return ""
    head = '<th>run</th><th class="number">time</th><th class="number">step</th><th>what</th>'
    return "<h2>Events</h2>\n" + _table("small", head, lines)


def _table(kind: str, head: str, lines: Sequence[str]) -> str:
    body = "\n".join(lines)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n'
        "</tbody></table></div>"
    )


def _count(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "–"
    return f"{value:,.0f}" if abs(value) < 1e18 else "–"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
