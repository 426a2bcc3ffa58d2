"""Experiment 3, scaling: one to sixteen nodes. Sixteen ranks on two cores can't show how fast sixteen nodes are. So
what can be measured is measured apart, bytes, memory, the computing of one rank and the exchanges alone; the model of
dslide.steptime puts times together, and is checked against two ranks on two cores."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dslide import phases
from dslide.calibration import on_cores
from dslide.forecast import renewals
from dslide.netlab import parse_rate
from dslide.netlab.rates import format_rate
from dslide.steptime import Link, NodeStep, node_step
from dslide.timing import StepTime

from .. import picture
from ..measuring import measure
from ..network import EPOCHS
from ..report import Figure, Section, table
from ..runs import Outcome, System
from ..workload import AMAZON, BATCH, Shape, make_data
from .measured import network_config

QUICK = Shape(4_000, 20_000, 60_000)
RATES = ("unlimited", "1gbit", "100mbit")  # that are emulated
MODELLED_RATES, MODELLED_CORES = ("100mbit", "1gbit", "10gbit"), 4
LATENCY = 2e-4  # seconds: half a round trip between nodes on one machine, as `dslide doctor --ranks 2` measures it
HERE = "bench.cluster.measured"


class Scaling:
    """The systems of the experiment, and what is made of their figures."""

    def __init__(self, data: Path, shape: Shape, nodes: tuple[int, ...], seconds: float, cores: int) -> None:
        self.shape, self.nodes, self.cores = shape, nodes, cores
        folder, labels = str(data), shape.labels
        threads = sorted({1, cores})
        self.training = {
            (n, rate, t): System(
                f"{n} node{'s' * (n > 1)}, {t} thread{'s' * (t > 1)}, {rate}", f"{HERE}:trained",
                {"data": folder, "nodes": n, "rate": rate, "threads": t, "epochs": EPOCHS, "labels": labels}, limit=900,
            )
            for n, rate, t in [(n, "unlimited", 1) for n in nodes] + self._checked(threads)
        }  # fmt: skip
        self.exchanges = {
            (n, rate): System(
                f"{n} nodes, {rate}", f"{HERE}:exchanged",
                {"nodes": n, "rate": rate, "labels": labels, "seconds": seconds}, limit=300,
            )
            for n in nodes[1:] for rate in (RATES if n == 2 else (RATES[0], RATES[-1]))
        }  # fmt: skip
        self.alone = {
            (n, t, grows): System(
                f"a rank of {n}, {t} thread{'s' * (t > 1)}{', labels x ' + str(n) if grows else ''}", f"{HERE}:alone",
                {"data": folder, "nodes": n, "threads": t, "seconds": seconds, "grows": grows},
            )
            for grows in (False, True) for n in nodes[grows:] for t in threads
        }  # fmt: skip

    @staticmethod
    def _checked(threads: list[int]) -> list[tuple[int, str, int]]:
        """Runs that the model is checked against: as many threads in all as there are cores."""
        return [(1, "unlimited", t) for t in threads] + [(2, rate, 1) for rate in RATES]

    def sections(self) -> list[Section]:
        shape = f"{self.shape.features:,} features, {self.shape.labels:,} labels, hidden 128, batch {BATCH}"
        return [
            Section(
                "Scaling: bytes and memory of a node",
                f"Training on an emulated cluster, {shape}, {EPOCHS} epochs of {self.shape.rows:,} rows. KB a node "
                "sends in a step are those on its interface, and by the formula that `dslide plan` uses; memory is the "
                "most that a rank held, and what was planned. Speeds are those after the first epoch; more ranks than "
                f"cores ({self.cores}) share them, and their speed says nothing.",
                list(self.training.values()),
                [
                    Figure("kilobytes", "KB a step"), Figure("formula_kilobytes", "by formula"),
                    Figure("megabytes", "MB"), Figure("planned_megabytes", "planned"),
                    Figure("samples_per_second", "samples/s"), Figure("waiting", "waiting", ".0%"),
                ],
            ),
            Section(
                "Scaling: computing of one rank",
                "One rank of R without the others, whose messages are echoes of its own (dslide.lone_rank), pinned to "
                "as many cores as it has threads; packing is part of the step. Whole layers, and cut down as `dslide "
                "plan` has them.",
                list(self.alone.values()),
                [
                    Figure("milliseconds", "ms a step", ",.2f"), Figure("packing_milliseconds", "packing", ",.2f"),
                    Figure("cut_milliseconds", "cut down", ",.2f"), Figure("renewal_seconds", "renewal, s", ",.2f"),
                    Figure("active", "active neurons"),
                ],
            ),
            Section(
                "Scaling: exchanges of a step alone",
                "The messages of a step, each round when the one before has come, and nothing computed between; "
                "processor time is that of a rank, looking for messages included. The model has so much for each "
                "message, and bytes over bandwidth. More ranks than cores share these.",
                list(self.exchanges.values()),
                [
                    Figure("milliseconds", "ms a step", ",.2f"), Figure("busy_milliseconds", "processor", ",.2f"),
                    Figure("messages", "messages"), Figure("messages_milliseconds", "model: messages", ",.2f"),
                    Figure("wire_milliseconds", "model: wire", ",.2f"),
                ],
            ),
        ]  # fmt: skip

    def checks(self, outcomes: Mapping[System, Outcome]) -> list[dict[str, Any]]:
        """The model with measured compute times against training, where every rank had cores of its own."""
        found = []
        for n, rate, threads in self._checked(sorted({1, self.cores})):
            timed = self._timed(outcomes, n, threads, False)
            speed = median(outcomes, self.training[n, rate, threads], "samples_per_second")
            if timed is None or speed is None:
                continue
            step = node_step(network_config(), self.shape.labels, n, timed.compute, Link(parse_rate(rate), LATENCY))
            expected = self._speed(step, timed)
            found.append(
                {"nodes": n, "threads": threads, "rate": rate, "modelled": expected, "measured": speed,
                 "ratio": expected / speed}
            )  # fmt: skip
        return found

    def _speed(self, step: NodeStep, timed: StepTime) -> float:
        """Samples a second of the epochs after the first, renewals of hash tables included."""
        config, steps = network_config(), -(-self.shape.rows // BATCH)
        moved = timed.active / self.shape.labels
        due = renewals(config, EPOCHS * steps, moved) - renewals(config, steps, moved)
        return (EPOCHS - 1) * self.shape.rows / ((EPOCHS - 1) * steps * step.total + due * timed.renewal)

    def modelled(self, outcomes: Mapping[System, Outcome]) -> list[dict[str, Any]]:
        """Strong and weak scaling of nodes with more cores than here, at several rates, by the model alone."""
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
                    step = node_step(network_config(), labels, n, compute, Link(parse_rate(rate), LATENCY))
                    found.append(
                        {"scaling": "weak" if grows else "strong", "rate": rate, "nodes": n, "labels": labels,
                         "compute_ms": 1e3 * step.compute, "messages_ms": 1e3 * step.messages,
                         "wire_ms": 1e3 * step.wire, "step_ms": 1e3 * step.total,
                         "samples_per_second": BATCH / step.total, "bottleneck": step.bottleneck}
                    )  # fmt: skip
        return found

    def _timed(self, outcomes: Mapping[System, Outcome], n: int, threads: int, grows: bool) -> StepTime | None:
        system = self.alone[n, threads, grows]
        compute, renewal, active = (
            median(outcomes, system, key) for key in ("milliseconds", "renewal_seconds", "active")
        )
        if compute is None or renewal is None or active is None:
            return None
        return StepTime({phases.REST: compute / 1e3}, 0.0, renewal, active)


def run(options: argparse.Namespace) -> int:
    """Measures, models, and writes report.md, report.json, modelled.json and two pictures."""
    from dslide.threads import available_cores

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
    return int(any(outcome.failed for outcome in outcomes.values()))


def median(outcomes: Mapping[System, Outcome], system: System, key: str) -> float | None:
    """Of the rounds; None if the system has no figures."""
    outcome = outcomes[system]
    return None if outcome.problem else statistics.median(figures[key] for figures in outcome.figures)


def check_table(checks: list[dict[str, Any]]) -> str:
    """The model beside what was measured."""
    rows = [
        [str(c["nodes"]), str(c["threads"]), c["rate"], f"{c['modelled']:,.0f}", f"{c['measured']:,.0f}",
         f"{c['ratio']:.2f}"]
        for c in checks
    ]  # fmt: skip
    heads = ["nodes", "threads", "links", "samples/s by the model", "measured", "ratio"]
    about = "Compute times are those of a rank alone, above; renewals of hash tables are counted."
    return f"## Scaling: the model against measurements\n\n{about}\n\n{table(heads, rows)}"


def modelled_table(modelled: list[dict[str, Any]]) -> str:
    """What the model makes of nodes that are not here."""
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
        f"links by the formula of dslide.steptime with {1e3 * LATENCY:g} ms of latency. Strong: the same network on "
        "more nodes. Weak: labels grow with the nodes."
    )
    return f"## Scaling: modelled for {MODELLED_CORES}-core nodes\n\n{about}\n\n{table(heads, rows)}"


def draw(path: Path, kind: str, modelled: list[dict[str, Any]]) -> None:
    """Samples a second over nodes, a line for each rate, and one for nodes that lose nothing."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for m in modelled:
        if m["scaling"] == kind:
            points = curves.setdefault(format_rate(parse_rate(m["rate"])), [])
            points.append((m["nodes"], m["samples_per_second"] / 1e3))
    what = {"strong": "the same network on more nodes", "weak": "labels grow with the nodes"}[kind]
    title = f"Modelled: {what}, {MODELLED_CORES} cores each"
    picture.write_curves(path, title, "1,000/s", curves, x_name="nodes", log_x=True, from_zero=True)
