"""What more nodes bring to training with defaults, modelled: the compute of one rank of R is measured alone, with one
thread and with all cores, extrapolated to larger nodes, and put into the time model (dslide.planner.step_time) with the
messages, bytes and rounds of a step. Nothing here is measured on several machines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cluster.scaling import MODELLED_CORES, QUICK
from bench.lib.measuring import exit_code, measure
from bench.lib.processes import Outcome, System
from bench.lib.sections import Metric, Section
from bench.lib.tables import markdown_table
from bench.lib.workload import AMAZON, BATCH, Shape, make_data, read_data
from dslide import Config
from dslide.model.defaults import resolve
from dslide.netlab import format_rate, parse_rate
from dslide.planner.calibration import on_cores, time_alone
from dslide.planner.step_time import NetworkSpeed, node_step
from dslide.planner.trial_rows import rows_of
from dslide.planner.trial_steps import StepTime
from dslide.training import phases
from dslide.util.threads import available_cores
from dslide.util.units import counted

LINKS = [("1gbit", 2e-4, "bf16"), ("1gbit", 1e-3, "bf16"), ("100mbit", 2e-4, "bf16"), ("100mbit", 2e-4, "int8")]
GROWN = 1024  # rows of a batch that grew with the nodes: what defaults choose for Amazon-670K's 490,449 rows


class Speedup:
    """The systems of the experiment: a rank of R with so many threads, with the same batch and with one that grows."""

    def __init__(self, data: Path, shape: Shape, nodes: tuple[int, ...], seconds: float, cores: int) -> None:
        self.shape, self.nodes, self.threads = shape, nodes, sorted({1, cores})
        self.systems = {
            (n, batch, t): System(
                f"a rank of {n}, {counted(batch, 'row')}, {counted(t, 'thread')}", f"{__name__}:alone",
                {"folder": str(data), "ranks": n, "batch_size": batch, "threads": t, "seconds": seconds},
            )
            for n in nodes for batch in batches(n) for t in self.threads
        }  # fmt: skip

    def section(self) -> Section:
        return Section(
            "Compute of a rank of R",
            f"Defaults, {self.shape.features:,} features, {self.shape.labels:,} labels. Milliseconds of a step on one "
            "rank without the others, whose messages are copies of its own (planner.lone_rank), pinned to as many "
            "cores as it has threads.",
            list(self.systems.values()),
            [Metric("step", "ms a step", ",.2f"), Metric("active", "active neurons")],
        )

    def modelled(self, outcomes: Mapping[System, Outcome]) -> str:
        """Samples/s of nodes with more cores than here, and over one node."""
        lines = []
        for rate, latency, wire in LINKS:
            for grows in (False, True):
                cells, one = [], 0.0
                for n in self.nodes:
                    batch = batches(n)[-1 if grows else 0]
                    found = self._speed(outcomes, n, batch, NetworkSpeed(parse_rate(rate), latency), wire)
                    one = one or found
                    cells.append(f"{found:,.0f} ({found / one:.2f})" if found else "-")
                links = f"{format_rate(parse_rate(rate))}, {1e3 * latency:g} ms"
                lines.append([links, wire, "grows" if grows else str(BATCH), *cells])
        heads = ["links", "wire", "batch", *(counted(n, "node") for n in self.nodes)]
        return (
            f"## Modelled for {MODELLED_CORES}-core nodes\n\n**Modelled, not measured**: samples/s, and over one node. "
            f"The fastest round; cores by Amdahl's law for each phase, links by planner.step_time.\n\n"
            f"{markdown_table(heads, lines)}"
        )

    def _speed(self, outcomes: Mapping[System, Outcome], n: int, batch: int, network: NetworkSpeed, wire: str) -> float:
        known = {}
        for threads in self.threads:
            # The fastest round: what disturbs another one counts double when cores are extrapolated.
            times = min(outcomes[self.systems[n, batch, threads]].rounds, key=lambda found: found["step"], default={})
            spent = {name: times[name] / 1e3 for name in phases.ALL if times.get(name)}
            known[threads] = StepTime(spent, 0.0, 0.0, 0.0)
        compute = on_cores(known, MODELLED_CORES).compute
        config = configured(n, batch, self.shape.labels).replace(wire=wire)
        return batch / node_step(config, self.shape.labels, n, compute, network).total if compute else 0.0


def batches(nodes: int) -> list[int]:
    """The batch of one node, and the one that grew."""
    return sorted({BATCH, min(GROWN, BATCH * nodes)})


def configured(ranks: int, batch_size: int, labels: int, **options: Any) -> Config:
    """The defaults for data like this."""
    return resolve(Config(batch_size=batch_size, loss="sigmoid", **options), labels, None, ranks)


def alone(folder: str, ranks: int, batch_size: int, threads: int, seconds: float, seed: int) -> dict[str, float]:
    """Milliseconds of a step, and by phase."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    data = read_data(folder)
    config = configured(ranks, batch_size, data.labels, threads=threads, seed=seed)
    timed = time_alone(config, rows_of(data, batch_size, seed), ranks, True, seconds, sys.maxsize)
    found = {name: 1e3 * timed.phases.get(name, 0.0) for name in phases.ALL}
    return found | {"step": 1e3 * timed.compute, "active": timed.active}


def run(options: argparse.Namespace) -> int:
    """Measures, models, and writes report.md and report.json."""
    shape = QUICK if options.quick else AMAZON
    nodes, seconds = ((1, 2), 0.2) if options.quick else ((1, 2, 4, 8, 16), 1.0)
    experiment = Speedup(make_data(options.data, shape), shape, nodes, seconds, available_cores())
    rounds = options.rounds or (1 if options.quick else 3)
    details = {"nodes": nodes, "seconds": seconds}
    return exit_code(measure([experiment.section()], range(rounds), options.out, details, experiment.modelled))
