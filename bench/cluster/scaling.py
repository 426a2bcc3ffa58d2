"""Scaling from 1 to 16 nodes. Sixteen ranks on two cores can't show the speed of sixteen nodes. So the parts are
measured separately: bytes, memory, the compute time of one rank, and the exchanges alone. The time model
(dslide.planner.step_time) combines the times, and is checked against two ranks on two cores."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cluster.labs import EPOCHS, JOB_LIMIT, TRAINED, network_config
from bench.lib.charts import write_chart
from bench.lib.measuring import exit_code, measure
from bench.lib.processes import Outcome, System
from bench.lib.sections import Metric, Section
from bench.lib.tables import markdown_table
from bench.lib.workload import AMAZON, BATCH, Shape, make_data
from dslide.netlab import format_rate, parse_rate
from dslide.planner.calibration import on_cores
from dslide.planner.forecast import rebuild_cost
from dslide.planner.step_time import NetworkSpeed, NodeStep, node_step
from dslide.planner.trial_steps import StepTime
from dslide.training import phases
from dslide.util.threads import available_cores
from dslide.util.units import counted

QUICK = Shape(4_000, 20_000, 60_000)
RATES = ("unlimited", "1gbit", "100mbit")  # emulated
MODELLED_RATES, MODELLED_CORES = ("100mbit", "1gbit", "10gbit"), 4
LATENCY = 2e-4  # seconds: half a round trip between nodes on one machine, measured by `dslide doctor --ranks 2`
RUNS = "bench.cluster.scaling_runs"


class Scaling:
    """The systems of the experiment, and the model of their results."""

    def __init__(self, data: Path, shape: Shape, nodes: tuple[int, ...], seconds: float, cores: int) -> None:
        self.shape, self.nodes, self.cores = shape, nodes, cores
        folder, labels = str(data), shape.labels
        threads = sorted({1, cores})
        self.training = {
            (n, rate, t): System(
                f"{counted(n, 'node')}, {counted(t, 'thread')}, {rate}", TRAINED,
                {"folder": folder, "nodes": n, "rate": rate, "threads": t, "epochs": EPOCHS}, limit=JOB_LIMIT,
            )
            for n, rate, t in [(n, "unlimited", 1) for n in nodes] + self._checked(threads)
        }  # fmt: skip
        self.exchanges = {
            (n, rate): System(
                f"{n} nodes, {rate}", f"{RUNS}:exchanged",
                {"nodes": n, "rate": rate, "labels": labels, "seconds": seconds}, limit=300,
            )
            for n in nodes[1:] for rate in (RATES if n == 2 else (RATES[0], RATES[-1]))
        }  # fmt: skip
        self.alone = {
            (n, t, grows): System(
                f"a rank of {n}, {counted(t, 'thread')}{', labels x ' + str(n) if grows else ''}", f"{RUNS}:alone",
                {"folder": folder, "nodes": n, "threads": t, "seconds": seconds, "grows": grows},
            )
            for grows in (False, True) for n in nodes[grows:] for t in threads
        }  # fmt: skip

    @staticmethod
    def _checked(threads: list[int]) -> list[tuple[int, str, int]]:
        """Runs to check the model against: no more threads than cores."""
        return [(1, "unlimited", t) for t in threads] + [(2, rate, 1) for rate in RATES]

    def sections(self) -> list[Section]:
        shape = f"{self.shape.features:,} features, {self.shape.labels:,} labels, hidden 128, batch {BATCH}"
        return [
            Section(
                "Scaling: bytes and memory of a node",
                f"Training on an emulated cluster, {shape}, {EPOCHS} epochs of {self.shape.rows:,} rows. KB a node "
                "sends in a step are those on its interface, and by the formula of `dslide plan`; memory is the peak "
                "of a rank, and the plan. Speeds are those after the first epoch; more ranks than cores "
                f"({self.cores}) share them, and their speed is not that of a cluster.",
                list(self.training.values()),
                [
                    Metric("kilobytes", "KB a step"), Metric("wire_kilobytes", "by formula"),
                    Metric("megabytes", "MB"), Metric("planned_megabytes", "planned"),
                    Metric("samples_per_second", "samples/s"), Metric("waiting", "waiting", ".0%"),
                ],
            ),
            Section(
                "Scaling: compute time of one rank",
                "One rank of R without the others, whose messages are copies of its own (planner.lone_rank), pinned to "
                "as many cores as it has threads; packing is part of the step. Whole layers, and layers cut down as in "
                "`dslide plan`.",
                list(self.alone.values()),
                [
                    Metric("milliseconds", "ms a step", ",.2f"), Metric("packing_milliseconds", "packing", ",.2f"),
                    Metric("cut_milliseconds", "cut down", ",.2f"), Metric("rebuild_seconds", "rebuild, s", ",.2f"),
                    Metric("active", "active neurons"),
                ],
            ),
            Section(
                "Scaling: exchanges of a step alone",
                "The messages of a step, each round after the one before has arrived, without computation between; "
                "processor time is that of a rank, polling for messages included. The model has a constant time for "
                "each message, and bytes over bandwidth. More ranks than cores share these.",
                list(self.exchanges.values()),
                [
                    Metric("milliseconds", "ms a step", ",.2f"), Metric("busy_milliseconds", "processor", ",.2f"),
                    Metric("messages", "messages"), Metric("messages_milliseconds", "model: messages", ",.2f"),
                    Metric("wire_milliseconds", "model: wire", ",.2f"),
                ],
            ),
        ]  # fmt: skip

    def checks(self, outcomes: Mapping[System, Outcome]) -> list[dict[str, Any]]:
        """The model with measured compute times against training in which every rank had cores of its own."""
        found = []
        for n, rate, threads in self._checked(sorted({1, self.cores})):
            timed = self._timed(outcomes, n, threads, False)
            speed = median(outcomes, self.training[n, rate, threads], "samples_per_second")
            if timed is None or speed is None:
                continue
            step = node_step(
                network_config(), self.shape.labels, n, timed.compute, NetworkSpeed(parse_rate(rate), LATENCY)
            )
            expected = self._speed(step, timed)
            found.append(
                {"nodes": n, "threads": threads, "rate": rate, "modelled": expected, "measured": speed,
                 "ratio": expected / speed}
            )  # fmt: skip
        return found

    def _speed(self, step: NodeStep, timed: StepTime) -> float:
        """Samples a second of the epochs after the first, rebuilds of hash tables included."""
        config, steps = network_config(), -(-self.shape.rows // BATCH)
        moved = timed.active / self.shape.labels
        due = rebuild_cost(config, EPOCHS * steps, moved) - rebuild_cost(config, steps, moved)
        return (EPOCHS - 1) * self.shape.rows / ((EPOCHS - 1) * steps * step.total + due * timed.rebuild)

    def modelled(self, outcomes: Mapping[System, Outcome]) -> list[dict[str, Any]]:
        """Strong and weak scaling of nodes with more cores than here, at several rates, by the model only."""
        found = []
        for grows in (False, True):
            for rate in MODELLED_RATES:
                for n in self.nodes:
                    each = {t: self._timed(outcomes, n, t, grows and n > 1) for t in sorted({1, self.cores})}
                    known = {t: timed for t, timed in each.items() if timed is not None}
                    if len(known) < len(each):
                        continue
                    compute = on_cores(known, MODELLED_CORES).compute
                    labels = self.shape.labels * (n if grows else 1)
                    step = node_step(network_config(), labels, n, compute, NetworkSpeed(parse_rate(rate), LATENCY))
                    found.append(
                        {"scaling": "weak" if grows else "strong", "rate": rate, "nodes": n, "labels": labels,
                         "compute_ms": 1e3 * step.compute, "messages_ms": 1e3 * step.messages,
                         "wire_ms": 1e3 * step.wire, "step_ms": 1e3 * step.total,
                         "samples_per_second": BATCH / step.total, "bottleneck": step.bottleneck}
                    )  # fmt: skip
        return found

    def _timed(self, outcomes: Mapping[System, Outcome], n: int, threads: int, grows: bool) -> StepTime | None:
        system = self.alone[n, threads, grows]
        compute, rebuild, active = (
            median(outcomes, system, key) for key in ("milliseconds", "rebuild_seconds", "active")
        )
        if compute is None or rebuild is None or active is None:
            return None
        return StepTime({phases.REST: compute / 1e3}, 0.0, rebuild, active)


def run(options: argparse.Namespace) -> int:
    """Measures, models, and writes report.md, report.json, modelled.json and two charts."""
    shape = QUICK if options.quick else AMAZON
    nodes, seconds = ((1, 2, 4), 0.3) if options.quick else ((1, 2, 4, 8, 16), 3.0)
    experiment = Scaling(make_data(options.data, shape), shape, nodes, seconds, available_cores())
    rounds = options.rounds or (1 if options.quick else 3)
    outcomes = measure(experiment.sections(), range(rounds), options.out, {"nodes": nodes, "seconds": seconds})
    checks, modelled = experiment.checks(outcomes), experiment.modelled(outcomes)
    text = "\n\n".join(["", check_table(checks), modelled_table(modelled), ""])
    print(text)
    with (options.out / "report.md").open("a") as file:
        file.write(text)
    results = {"checks": checks, "modelled": modelled, "latency": LATENCY, "cores": MODELLED_CORES}
    (options.out / "modelled.json").write_text(json.dumps(results, indent=1) + "\n")
    for kind in ("strong", "weak"):
        draw(options.out / f"{kind}.svg", kind, modelled)
    return exit_code(outcomes)


def median(outcomes: Mapping[System, Outcome], system: System, key: str) -> float | None:
    """Over the rounds; None if the system has no results."""
    outcome = outcomes[system]
    return None if outcome.problem else statistics.median(result[key] for result in outcome.rounds)


def check_table(checks: list[dict[str, Any]]) -> str:
    """The model beside measurements."""
    rows = [
        [str(c["nodes"]), str(c["threads"]), c["rate"], f"{c['modelled']:,.0f}", f"{c['measured']:,.0f}",
         f"{c['ratio']:.2f}"]
        for c in checks
    ]  # fmt: skip
    heads = ["nodes", "threads", "links", "samples/s by the model", "measured", "ratio"]
    about = "Compute times are those of a rank alone, above; rebuilds of hash tables are included."
    return f"## Scaling: the model against measurements\n\n{about}\n\n{markdown_table(heads, rows)}"


def modelled_table(modelled: list[dict[str, Any]]) -> str:
    """The model for larger nodes."""
    rows = [
        [m["scaling"], format_rate(parse_rate(m["rate"])), str(m["nodes"]), f"{m['labels']:,}",
         f"{m['compute_ms']:.2f}", f"{m['messages_ms']:.2f}", f"{m['wire_ms']:.2f}", f"{m['step_ms']:.2f}",
         f"{m['samples_per_second']:,.0f}", m["bottleneck"]]
        for m in modelled
    ]  # fmt: skip
    heads = ["scaling", "links", "nodes", "labels", *(f"{what} ms" for what in ("compute", "messages", "wire", "step")),
             "samples/s", "bottleneck"]  # fmt: skip
    about = (
        f"**Modelled, not measured**: nodes with {MODELLED_CORES} cores each, by Amdahl's law from the cores here, and "
        f"links by the formula of planner.step_time with {1e3 * LATENCY:g} ms of latency. Strong: the same network on "
        "more nodes. Weak: labels grow with the nodes."
    )
    return f"## Scaling: modelled for {MODELLED_CORES}-core nodes\n\n{about}\n\n{markdown_table(heads, rows)}"


def draw(path: Path, kind: str, modelled: list[dict[str, Any]]) -> None:
    """Samples a second over nodes, a line for each rate."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for m in modelled:
        if m["scaling"] == kind:
            points = curves.setdefault(format_rate(parse_rate(m["rate"])), [])
            points.append((m["nodes"], m["samples_per_second"] / 1e3))
    what = {"strong": "the same network on more nodes", "weak": "labels grow with the nodes"}[kind]
    title = f"Modelled: {what}, {MODELLED_CORES} cores each"
    write_chart(path, title, "1,000/s", curves, x_name="nodes", zero=True)
