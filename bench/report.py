"""From figures to tables: a section says what its rows, columns and comparisons are; this makes markdown and JSON."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .runs import Outcome, System


@dataclass(frozen=True)
class Figure:
    """A column: a key of what systems return."""

    key: str
    heading: str
    format: str = ",.0f"


@dataclass(frozen=True)
class Comparison:
    """A figure of one system against that of another, taken round by round."""

    of: System
    to: System
    figure: Figure
    kind: Literal["ratio", "difference"] = "ratio"

    @property
    def name(self) -> str:
        sign = "/" if self.kind == "ratio" else "-"
        return f"{self.figure.heading}: {self.of.name} {sign} {self.to.name}"

    def by_round(self, outcomes: Mapping[System, Outcome]) -> list[float]:
        """Empty if one of the two has no figures for all rounds."""
        of, to = outcomes[self.of], outcomes[self.to]
        if of.problem or to.problem:
            return []
        apply = operator.truediv if self.kind == "ratio" else operator.sub
        key = self.figure.key
        return [apply(a[key], b[key]) for a, b in zip(of.figures, to.figures, strict=True)]

    @property
    def format(self) -> str:
        return ",.2f" if self.kind == "ratio" else f"+{self.figure.format}"


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    title: str
    about: str  # what was measured and how, in markdown
    systems: Sequence[System]  # rows
    figures: Sequence[Figure]  # columns
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
        """Like 7 (5 to 8), or only 7 if all are the same."""
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
    """A row for each system; one without figures says why."""
    rows = []
    for system in section.systems:
        outcome = outcomes[system]
        if outcome.problem:
            cells = [_one_cell(outcome.problem), *[""] * (len(section.figures) - 1)]
        else:
            cells = [_summary(outcome, figure).text(figure.format) for figure in section.figures]
        rows.append([system.name, *cells])
    return table(["", *(figure.heading for figure in section.figures)], rows)


def comparison_table(section: Section, outcomes: Mapping[System, Outcome]) -> str:
    rows = []
    for comparison in section.comparisons:
        values = comparison.by_round(outcomes)
        rows.append([comparison.name, Summary.of(values).text(comparison.format) if values else "-"])
    return table(["within a round", "median (lowest to highest)"], rows)


def as_json(
    sections: Sequence[Section], outcomes: Mapping[System, Outcome], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything in the report, and the figures of every run."""
    return {"about": dict(about), "sections": [_section_json(section, outcomes) for section in sections]}


def _section_json(section: Section, outcomes: Mapping[System, Outcome]) -> dict[str, Any]:
    systems, comparisons = [], []
    for system in section.systems:
        outcome = outcomes[system]
        summaries = {} if outcome.problem else {f.key: vars(_summary(outcome, f)) for f in section.figures}
        systems.append(
            {"name": system.name, "problem": outcome.problem, "rounds": outcome.figures, "summary": summaries}
        )
    for comparison in section.comparisons:
        values = comparison.by_round(outcomes)
        summary = vars(Summary.of(values)) if values else {}
        comparisons.append(
            {
                "of": comparison.of.name,
                "to": comparison.to.name,
                "figure": comparison.figure.key,
                "kind": comparison.kind,
                "rounds": values,
                "summary": summary,
            }
        )
    return {"title": section.title, "systems": systems, "comparisons": comparisons}


def _summary(outcome: Outcome, figure: Figure) -> Summary:
    return Summary.of([figures[figure.key] for figures in outcome.figures])


def _one_cell(text: str) -> str:
    return text.replace("|", "\\|")


def table(header: list[str], rows: list[list[str]]) -> str:
    """In markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
