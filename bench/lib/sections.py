"""From results to reports: a section has rows, columns and comparisons, which become markdown and JSON."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.lib.processes import Outcome, System
from bench.lib.tables import markdown_table


@dataclass(frozen=True)
class Metric:
    """A column: a key of the results of systems."""

    key: str
    heading: str
    format: str = ",.0f"


@dataclass(frozen=True)
class Comparison:
    """A metric of one system against that of another, within each round."""

    of: System
    to: System
    metric: Metric
    kind: Literal["ratio", "difference"] = "ratio"

    @property
    def name(self) -> str:
        sign = "/" if self.kind == "ratio" else "-"
        return f"{self.metric.heading}: {self.of.name} {sign} {self.to.name}"

    def by_round(self, outcomes: Mapping[System, Outcome]) -> list[float]:
        """The ratio or difference in each round; empty if a system has no results."""
        of, to = outcomes[self.of], outcomes[self.to]
        if of.problem or to.problem:
            return []
        apply = operator.truediv if self.kind == "ratio" else operator.sub
        key = self.metric.key
        return [apply(a[key], b[key]) for a, b in zip(of.rounds, to.rounds, strict=True)]

    @property
    def format(self) -> str:
        return ",.2f" if self.kind == "ratio" else f"+{self.metric.format}"


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    title: str
    about: str  # what is measured and how, in markdown
    systems: Sequence[System]  # rows
    metrics: Sequence[Metric]  # columns
    comparisons: Sequence[Comparison] = ()


@dataclass(frozen=True)
class Summary:
    """Values of several rounds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, format: str) -> str:
        """Like 7 (5 to 8), or only 7 if all are equal."""
        median, lowest, highest = (f"{value:{format}}" for value in (self.median, self.lowest, self.highest))
        return median if lowest == highest else f"{median} ({lowest} to {highest})"


def markdown(sections: Sequence[Section], outcomes: Mapping[System, Outcome], about: str) -> str:
    """The whole report."""
    parts = ["# Benchmark", about]
    for section in sections:
        parts += [f"## {section.title}", section.about, system_table(section, outcomes)]
        if section.comparisons:
            parts.append(comparison_table(section, outcomes))
    return "\n\n".join(parts) + "\n"


def system_table(section: Section, outcomes: Mapping[System, Outcome]) -> str:
    """A row for each system; one without results says why."""
    rows = []
    for system in section.systems:
        outcome = outcomes[system]
        if outcome.problem:
            cells = [outcome.problem, *[""] * (len(section.metrics) - 1)]
        else:
            cells = [summary(outcome, metric).text(metric.format) for metric in section.metrics]
        rows.append([system.name, *cells])
    return markdown_table(["", *(metric.heading for metric in section.metrics)], rows)


def comparison_table(section: Section, outcomes: Mapping[System, Outcome]) -> str:
    rows = []
    for comparison in section.comparisons:
        values = comparison.by_round(outcomes)
        rows.append([comparison.name, Summary.of(values).text(comparison.format) if values else "-"])
    return markdown_table(["within a round", "median (lowest to highest)"], rows)


def as_json(
    sections: Sequence[Section], outcomes: Mapping[System, Outcome], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything in the report, and the results of every round."""
    return {"about": dict(about), "sections": [_section_json(section, outcomes) for section in sections]}


def _section_json(section: Section, outcomes: Mapping[System, Outcome]) -> dict[str, Any]:
    systems, comparisons = [], []
    for system in section.systems:
        outcome = outcomes[system]
        summaries = {} if outcome.problem else {m.key: vars(summary(outcome, m)) for m in section.metrics}
        systems.append(
            {"name": system.name, "problem": outcome.problem, "rounds": outcome.rounds, "summary": summaries}
        )
    for comparison in section.comparisons:
        values = comparison.by_round(outcomes)
        comparisons.append(
            {
                "of": comparison.of.name,
                "to": comparison.to.name,
                "metric": comparison.metric.key,
                "kind": comparison.kind,
                "rounds": values,
                "summary": vars(Summary.of(values)) if values else {},
            }
        )
    return {"title": section.title, "systems": systems, "comparisons": comparisons}


def summary(outcome: Outcome, metric: Metric) -> Summary:
    """A metric over the rounds."""
    return Summary.of([result[metric.key] for result in outcome.rounds])
