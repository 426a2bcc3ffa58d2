"""Where the time of a step goes on one rank of R, and what of it does not divide among ranks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cluster.scaling import QUICK, median
from bench.lib.measuring import exit_code, measure
from bench.lib.processes import Outcome, System
from bench.lib.sections import Metric, Section
from bench.lib.tables import markdown_table
from bench.lib.workload import AMAZON, BATCH, Shape, make_data, read_data
from bench.single.phases import SHOWN
from dslide import Config
from dslide.model.defaults import resolve
from dslide.planner.calibration import time_alone
from dslide.planner.trial_rows import rows_of
from dslide.training import phases
from dslide.util.units import counted

COLUMNS = {phases.READING: "reading"} | SHOWN | {phases.PACKING: "packing"}
NETWORKS: dict[str, dict[str, Any]] = {"defaults": {}, "without label prior": {"prior_labels": 0}}


class Phases:
    """The systems of the experiment: each network on one rank of R, with the same batch and with one that grows."""

    def __init__(self, data: Path, shape: Shape, ranks: tuple[int, ...], seconds: float) -> None:
        self.shape, self.ranks = shape, ranks
        self.systems = {
            (name, size, batch): System(
                f"{name}, a rank of {size}, {counted(batch, 'row')}", f"{__name__}:alone",
                {"folder": str(data), "ranks": size, "batch_size": batch, "seconds": seconds, **options},
            )
            for name, options in NETWORKS.items() for size in ranks for batch in sorted({BATCH, BATCH * size})
        }  # fmt: skip

    def section(self) -> Section:
        """A row for each system."""
        return Section(
            "Phases of a step on one rank of R",
            f"{self.shape.features:,} features, {self.shape.labels:,} labels, one thread. Milliseconds of a step by "
            "phase on one rank without the others, whose messages are copies of its own (planner.lone_rank), pinned to "
            "a core; unpacking is part of packing. The label prior is made up, with as many labels for a feature as in "
            "the data.",
            list(self.systems.values()),
            [
                *(Metric(heading, heading, ",.2f") for heading in COLUMNS.values()),
                Metric("step", "step", ",.2f"), Metric("active", "active neurons"),
            ],
        )  # fmt: skip

    def divided(self, outcomes: Mapping[System, Outcome]) -> str:
        """What a row costs on one rank of R, over 1/R of what it costs on one."""
        lines = []
        for name in NETWORKS:
            for grows in (False, True):
                cells = []
                for size in self.ranks:
                    alone, step = (
                        median(outcomes, self.systems[name, n, BATCH * (n if grows else 1)], "step") for n in (1, size)
                    )
                    rows = size if grows else 1
                    cells.append(f"{size * step / rows / alone:.2f}" if alone and step else "-")
                lines.append([name, "256 x R" if grows else "256", *cells])
        heads = ["network", "batch", *(f"R = {size}" for size in self.ranks)]
        return (
            "## What does not divide\n\nThe time that one rank of R computes for a row, over 1/R of that of one rank: "
            f"1 if everything divided.\n\n{markdown_table(heads, lines)}"
        )


def alone(folder: str, ranks: int, batch_size: int, seconds: float, seed: int, **options: Any) -> dict[str, float]:
    """Milliseconds of a step by phase."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    data = read_data(folder)
    config = resolve(Config(threads=1, batch_size=batch_size, seed=seed, **options), data.labels, data, ranks)
    timed = time_alone(config, rows_of(data, batch_size, seed), ranks, True, seconds, sys.maxsize)
    found = {heading: 1e3 * timed.phases.get(name, 0.0) for name, heading in COLUMNS.items()}
    return found | {"step": 1e3 * timed.compute, "active": timed.active}


def run(options: argparse.Namespace) -> int:
    """Measures and writes report.md and report.json."""
    shape = QUICK if options.quick else AMAZON
    ranks, seconds = ((1, 2), 0.2) if options.quick else ((1, 2, 4, 8, 16), 1.0)
    experiment = Phases(make_data(options.data, shape), shape, ranks, seconds)
    rounds = options.rounds or (1 if options.quick else 3)
    details = {"ranks": ranks, "seconds": seconds}
    return exit_code(measure([experiment.section()], range(rounds), options.out, details, experiment.divided))
