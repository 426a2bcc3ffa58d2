"""Two ranks of which one has half a core: beside it, on the same core, runs a loop. What shares of the network in
proportion to speed bring, over equal ones and over what both ranks could do alone."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.cluster.labs import LIMIT
from bench.cluster.scaling import QUICK
from bench.lib.commands import as_arguments, read_summary
from bench.lib.measuring import exit_code, measure
from bench.lib.processes import Outcome, System
from bench.lib.sections import Metric, Section
from bench.lib.tables import markdown_table
from bench.lib.training import SPEED
from bench.lib.workload import AMAZON, BATCH, Shape, make_data
from dslide.launch.mpiexec import find_mpiexec

NETWORKS: dict[str, dict[str, Any]] = {"defaults": {}, "without label prior": {"prior_labels": 0}}
FIRST, SECOND, EQUAL, MEASURED = "the first alone", "the second alone", "both, equal shares", "both, --shares -1"
TWO_TO_ONE = "both, --shares 2,1"
RANKS: dict[str, tuple[list[int], dict[str, Any]]] = {  # the cores that each has a rank on, and its options
    FIRST: ([0], {}), SECOND: ([1], {}), EQUAL: ([0, 1], {}), MEASURED: ([0, 1], {"shares": -1}),
    TWO_TO_ONE: ([0, 1], {"shares": "2,1"}),
}  # fmt: skip


class Unequal:
    """The systems of the experiment."""

    def __init__(self, data: Path, shape: Shape) -> None:
        self.shape = shape
        self.systems = {
            (name, ranks): System(
                f"{name}: {ranks}", f"{__name__}:trained",
                {"folder": str(data), "ranks": ranks, **options}, limit=LIMIT,
            )
            for name, options in NETWORKS.items() for ranks in RANKS
        }  # fmt: skip

    def section(self) -> Section:
        """A row for each system."""
        return Section(
            "Two ranks, one of them at half speed",
            f"{self.shape.features:,} features, {self.shape.labels:,} labels, an epoch of {self.shape.rows:,} rows in "
            f"batches of {BATCH}. Each rank has one thread and is pinned to a core of its own; on that of the second "
            "a loop runs besides, also while the first trains alone. Shares are those that were used.",
            list(self.systems.values()),
            [SPEED, Metric("first_share", "share of the first", ".0%")],
        )

    def efficiency(self, outcomes: Mapping[System, Outcome]) -> str:
        """What both ranks do together, over what they do alone, summed; within rounds."""
        lines = []
        for name in NETWORKS:
            speeds = {
                ranks: [found["samples_per_second"] for found in outcomes[self.systems[name, ranks]].rounds]
                for ranks in RANKS
            }
            alone = [a + b for a, b in zip(speeds[FIRST], speeds[SECOND], strict=False)]
            for ranks in (EQUAL, TWO_TO_ONE, MEASURED):
                ratios = sorted(both / each for both, each in zip(speeds[ranks], alone, strict=False))
                if ratios:
                    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                    lines.append([name, ranks.removeprefix("both, "), spread])
        return "## Over the sum of both alone\n\n" + markdown_table(
            ["network", "shares", "samples/s over the sum"], lines
        )


def trained(folder: str, ranks: list[int] | str, seed: int, **options: Any) -> dict[str, float]:
    """`dslide train` with a rank on each of these cores."""
    cores, more = RANKS[str(ranks)]
    usable = sorted(os.sched_getaffinity(0))
    given = {"epochs": 1, "validation": 0, "linear_negatives": 0, "batch_size": BATCH, "threads": 1, "seed": seed}
    with tempfile.TemporaryDirectory() as temporary, busy(usable[1]):
        run = Path(temporary) / "run"
        words = [f"{folder}/train.txt", f"--out={run}", "--quiet", *as_arguments(given | more | options)]
        command: list[str] = [] if len(cores) == 1 else [find_mpiexec().program]
        for number, core in enumerate(cores):
            command += [":"] * (number > 0) + ["-n", "1"] * (len(cores) > 1)
            command += ["taskset", "-c", str(usable[core]), sys.executable, "-m", "dslide.cli", "train", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the run failed: {done.stderr.strip().splitlines()[-1:]}")
        summary = read_summary(run)
    shares = summary["shares"]
    return {"samples_per_second": summary["samples_per_second"], "first_share": shares[0] / sum(shares)}


@contextmanager
def busy(core: int) -> Iterator[None]:
    """A loop runs on this core."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(loop.pid, {core})
        yield
    finally:
        loop.kill()
        loop.wait()


def run(options: argparse.Namespace) -> int:
    """Measures and writes report.md and report.json."""
    experiment = Unequal(make_data(options.data, shape := QUICK if options.quick else AMAZON), shape)
    rounds = options.rounds or (1 if options.quick else 3)
    return exit_code(measure([experiment.section()], range(rounds), options.out, {}, experiment.efficiency))
