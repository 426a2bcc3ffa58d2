"""Bar charts as HTML, a group for each run: bars take the available width, labels wrap."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dslide.report.history import RunHistory
from dslide.report.svg import classes, letter


def rank_bars(runs: Sequence[RunHistory]) -> dict[int, str]:
    """Seconds of computing and of waiting for each rank; empty if no run has several ranks."""
    if not any(run.ranks > 1 and run.rank_seconds for run in runs):
        return {}
    longest = max(sum(seconds) for run in runs for seconds in run.rank_seconds.values())
    found = {}
    for i, run in enumerate(runs):
        rows = [
            _row(f"rank {rank}", [compute, wait], longest, f"{compute:,.1f} + {wait:,.1f}")
            for rank, (compute, wait) in run.rank_seconds.items()
        ]
        if rows:
            more = f"the first {len(rows)} of {run.ranks:,} ranks" if run.ranks > len(rows) else ""
            found[i] = _group(i, more, rows)
    return found


def bucket_bars(runs: Sequence[RunHistory]) -> dict[int, str]:
    """Share of neurons by the size of their bucket, for each layer with hash tables."""
    layers = [(i, *item) for i, run in enumerate(runs) for item in run.tables.items() if sum(item[1].by_size) > 0]
    longest = max((max(tables.by_size) / sum(tables.by_size) for _, _, tables in layers), default=0.0)
    found: dict[int, str] = {}
    for i, layer, tables in layers:
        total = sum(tables.by_size)
        rows = [
            _row(f"{2**power}–{2 ** (power + 1) - 1}" if power else "1", [size / total], longest, f"{size / total:.1%}")
            for power, size in enumerate(tables.by_size)
        ]
        words = (
            f"{layer}, step {tables.step:,.0f}: fullest {tables.fullest:,.0f}, {tables.empty_share:.1%} of buckets "
            f"empty, {tables.dropped / (total + tables.dropped):.1%} of neurons dropped from full ones"
        )
        found[i] = found.get(i, "") + _group(i, words, rows)
    return found


def phase_bars(runs: Sequence[RunHistory]) -> dict[int, str]:
    """Milliseconds of each phase in a step."""
    longest = max((ms for run in runs for ms in run.phases.values()), default=0.0)
    return {
        i: _group(i, "", [_row(name, [ms], longest, f"{ms:.3f}") for name, ms in run.phases.items()])
        for i, run in enumerate(runs)
        if run.phases
    }


def _group(run: int, words: str, rows: Sequence[str]) -> str:
    head = f'<h4><span class="letter">{letter(run)}</span> {escape(words)}</h4>'
    return f'<div class="{classes(run)}">{head}\n<div class="bars">\n' + "\n".join(rows) + "\n</div></div>"


def _row(label: str, values: Sequence[float], longest: float, text: str) -> str:
    """A bar of one or two parts, relative to the longest of all."""
    parts = "".join(
        f'<i{" class=waiting" * (part > 0)} style="width:{100 * min(max(value / longest, 0), 1):.1f}%"></i>'
        for part, value in enumerate(values)
        if longest > 0
    )
    bar = f'<span class="bar">{parts}</span><span class="value">{text}</span>'
    return f'<div class="row"><span>{escape(label)}</span>{bar}</div>'
