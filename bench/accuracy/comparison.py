"""Every set with defaults, with its recipe and with peers: a table of all sets, then a section and a chart for each."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.accuracy.sets import TREES, DataSet
from bench.accuracy.table import PARABEL, overview
from bench.accuracy.words import write_bag_of_words
from bench.lib.charts import write_chart
from bench.lib.measuring import exit_code, log, measure
from bench.lib.processes import Outcome, System, installed
from bench.lib.sections import Comparison, Section
from bench.lib.training import MEMORY, SECONDS
from dslide.util.units import counted


def section(data: DataSet) -> Section:
    """Defaults beside the recipe and peers."""
    kind, defaults, peers = data.kind, data.defaults(), data.peers()
    systems, how = [defaults], ""
    if kind.labelled:
        systems.append(data.defaults("dslide, --ranking propensity", {"ranking": "propensity"}))
    if data.recipe:
        systems.append(data.with_recipe())
        how = f"; recipe: `--config recipes/{data.recipe.name}`"
        if not peers and data.options.get("output") != "full":
            systems.append(data.with_recipe("dslide, recipe, all outputs", {"output": "full"}))
    reading = "".join(f" --{name.replace('_', '-')} {value}" for name, value in data.reading.items())
    main_metric = kind.metrics[0]
    others = [*systems[1:], *(peer for peer in peers if peer.name == PARABEL or "Parabel" not in peer.name)]
    return Section(
        data.name,
        f"Defaults: `{data.command()}{reading}`{how}. Seconds are those of training, without reading and testing."
        + (" Peers have the same bag of words, and default settings; Parabel (omikuji) takes no seed." if peers else "")
        + f"\n\n![{main_metric.heading} over seconds of training]({data.name}.svg)",
        [*systems, *peers],
        [*kind.metrics, SECONDS, MEMORY[0]],
        [
            comparison
            for other in others
            for comparison in (
                Comparison(defaults, other, main_metric, "difference"),
                Comparison(defaults, other, SECONDS),
            )
        ],
    )


def curves(section: Section, outcomes: Mapping[System, Outcome]) -> dict[str, list[tuple[float, float]]]:
    """Medians over the rounds for each point that all rounds have: held-out rows may end a run before its last epoch.
    The end of the run is the last point. Parabel's numbers of trees are points of one line."""
    found: dict[str, list[tuple[float, float]]] = {}
    for system in section.systems:
        rounds: list[Any] = [result["curve"] for result in outcomes[system].rounds]
        shared = min(map(len, rounds), default=0)
        rounds = [[*points[: shared - 1], points[-1]] for points in rounds]
        points = [_median_point(run) for run in zip(*rounds, strict=True)]
        name = f"Parabel, {TREES[0]} to {TREES[-1]} trees" if system.name.startswith("Parabel") else system.name
        found[name] = found.get(name, []) + points
    return found


def _median_point(points: Sequence[Sequence[float]]) -> tuple[float, float]:
    seconds, values = zip(*points, strict=True)
    return statistics.median(seconds), statistics.median(values)


def kept_results(systems: Sequence[System], seeds: Sequence[int]) -> str:
    """Like 3 results: how many there are already; empty if none."""
    count = sum(Path(system.kept, f"{seed}.json").exists() for system in systems for seed in seeds)
    return counted(count, "result") if count else ""


def compare(sets: Sequence[DataSet], seeds: Sequence[int], out: Path, details: Mapping[str, Any]) -> int:
    """Measures the sets; returns 1 if a system failed."""
    sections = {data.name: section(data) for data in sets}
    for data in sets:
        if any(installed(peer.needs, peer.python) for peer in data.peers()) and data.test:
            log(f"writing the bag of words of {data.name}")
            write_bag_of_words(data.options, data.train, data.test, data.words)
    details = {**details, "recipes": {data.name: data.options for data in sets if data.recipe}}
    kinds = {data.name: data.kind for data in sets}

    earlier = kept_results([system for each in sections.values() for system in each.systems], seeds)
    if earlier:
        log(f"{earlier} of an earlier run are taken from {out}/results; remove that folder to measure again")

    def table(outcomes: Mapping[System, Outcome]) -> str:
        text = overview(list(sections.values()), kinds, outcomes)
        about = f"{earlier} are of an earlier run of the same command; the share of other programs above is not theirs."
        return f"{about}\n\n{text}" if earlier else text

    outcomes = measure(list(sections.values()), seeds, out, details, overview=table)
    for data in sets:
        heading = data.kind.metrics[0].heading
        write_chart(out / f"{data.name}.svg", f"{data.name}: {heading} over time", heading,
                    curves(sections[data.name], outcomes))  # fmt: skip
    return exit_code(outcomes)
