"""The table of all sets: accuracy, seconds, memory, and the time to Parabel's accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.accuracy.sets import Kind
from bench.lib.processes import Outcome, System
from bench.lib.sections import Metric, Section, Summary, summary
from bench.lib.tables import markdown_table
from bench.lib.training import MEMORY, SECONDS

PARABEL = "Parabel, 3 trees"
HEADER = (
    "set", "system", "P@1 / 3 / 5", "PSP@1 / 3 / 5", "nDCG@1 / 3 / 5", "seconds", "peak memory, GB",
    "seconds to Parabel's P@1", "over Parabel's seconds",
)  # fmt: skip
ABOUT = (
    "All sets. Of three medians only the first has its lowest and highest value here. Parabel's P@1 is that of "
    f"{PARABEL}, on the same test rows; a system reaches it at the end of an epoch, if it has it at the end of the run "
    "too, or at that end, or never (-)."
)


def overview(sections: Sequence[Section], kinds: Mapping[str, Kind], outcomes: Mapping[System, Outcome]) -> str:
    """A row for each set and system. `kinds` are those of the sets, by the titles of their sections."""
    rows = []
    for section in sections:
        parabel = next((outcomes[system] for system in section.systems if system.name == PARABEL), Outcome())
        for i, system in enumerate(section.systems):
            outcome, name = outcomes[system], f"**{section.title}**" if i == 0 else ""
            if outcome.problem:
                rows.append([name, system.name, outcome.problem, *[""] * (len(HEADER) - 3)])
                continue
            cells = [summary(outcome, metric).text(metric.format) for metric in (SECONDS, MEMORY[0])]
            reached = to_parabel(outcome, parabel)
            for values, format in zip(zip(*reached, strict=True), (",.1f", ",.2f"), strict=False):
                cells.append(Summary.of(values).text(format).replace("inf", "-"))
            cells = [name, system.name, *_accuracy(kinds[section.title], outcome), *cells]
            rows.append(cells + [""] * (len(HEADER) - len(cells)))
    return f"{ABOUT}\n\n{markdown_table(HEADER, rows)}"


def to_parabel(outcome: Outcome, parabel: Outcome) -> list[tuple[float, float]]:
    """For each round the seconds of training after which a system is as accurate as Parabel in the same round, and
    their ratio to Parabel's seconds; infinite if it never is. Empty without Parabel."""
    if parabel.problem:
        return []
    results: list[tuple[Any, Any]] = list(zip(outcome.rounds, parabel.rounds, strict=False))
    seconds = [(seconds_to(ours["curve"], theirs["p_at_1"]), theirs["seconds"]) for ours, theirs in results]
    return [(ours, ours / theirs) for ours, theirs in seconds]


def seconds_to(curve: Sequence[Sequence[float]], target: float) -> float:
    """The seconds of the first point of a curve that reaches the target; infinite if the last one does not: a network
    that got worse would have had to be kept in time."""
    reached = [seconds for seconds, value in curve if value >= target]
    return reached[0] if curve[-1][1] >= target else math.inf


def _accuracy(kind: Kind, outcome: Outcome) -> list[str]:
    """The cells of P, PSP and nDCG; other metrics are named in the first of them."""
    if kind.labelled:
        return [_triple(kind.metrics[i : i + 3], outcome) for i in range(0, 9, 3)]
    named = [f"{metric.heading} {summary(outcome, metric).text(metric.format)}" for metric in kind.metrics]
    return [", ".join(named), "", ""]


def _triple(metrics: Sequence[Metric], outcome: Outcome) -> str:
    """Like .657 / .492 / .401 (.656 to .658)."""
    found = [summary(outcome, metric) for metric in metrics]
    text = " / ".join(_short(each.median) for each in found)
    lowest, highest = _short(found[0].lowest), _short(found[0].highest)
    return text if lowest == highest else f"{text} ({lowest} to {highest})"


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")
