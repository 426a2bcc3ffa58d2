"""What training will be like on some number of nodes, a rank on each: memory, what is sent, time, what limits it, and
how many nodes are worth having."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dslide.config import Config
from dslide.planner.calibration import Calibration
from dslide.planner.memory import Plan
from dslide.planner.step_time import Link, NodeStep, node_step
from dslide.planner.traffic import bytes_on_wire, rounds_per_step
from dslide.training.schedules import RebuildSchedule

NODES = (1, 2, 4, 8, 16)  # for which the forecast is always told, as far as the network can be split
WORTH = 1.5  # how much faster twice as many nodes must be


@dataclass(frozen=True)
class Forecast:
    """Training on so many nodes."""

    nodes: int
    memory: Plan
    bytes_sent: int  # by each node in a step, headers included, at most
    rounds: int
    step: NodeStep
    kind: str  # of computing that takes longest
    renewal: float  # seconds of a renewal of hash tables when all neurons have moved
    moved: float  # share of neurons that a step moves
    rows: int  # in a step

    @property
    def samples_per_second(self) -> float:
        return self.rows / self.step.total

    def seconds(self, config: Config, steps: int) -> float:
        """For the first so many steps, renewals of hash tables included."""
        return steps * self.step.total + renewals(config, steps, self.moved) * self.renewal

    def bottleneck(self, memory: int) -> str:
        """In words, with so much memory on each node."""
        if self.memory.bytes_total > memory:
            return "memory"
        found = self.step.bottleneck
        return f"compute ({self.kind})" if found == "compute" else found


def forecast(config: Config, labels: int, memory: Plan, calibration: Calibration, link: Link) -> Forecast:
    """Training on the nodes that the plan is for."""
    nodes = memory.ranks
    timed = calibration.step(nodes)
    kind = max(timed.phases, key=lambda name: timed.phases[name])
    moved = timed.active / labels if config.active_sets == "shared" else 1.0
    return Forecast(
        nodes, memory, bytes_on_wire(config, labels, nodes), rounds_per_step(config, labels),
        node_step(config, labels, nodes, timed.compute, link), kind, timed.renewal, moved, config.batch_size,
    )  # fmt: skip


def renewals(config: Config, steps: int, moved: float) -> float:
    """What rebuilds of hash tables in so many steps, the first build included, come to, in rebuilds of all neurons.
    One takes in proportion to the neurons that moved since the last one: each step moves a share of them at random."""
    total, before = 1.0, 0
    for step in RebuildSchedule(config.rebuild_every, config.rebuild_growth).before(steps):
        total -= math.expm1((before - step) * moved)
        before = step
    return total


def recommended(forecasts: Mapping[int, Forecast], memory: int) -> tuple[int | None, str]:
    """The number of nodes to use, and why: the fewest that have enough memory, and twice as many as long as that makes
    training 1.5 times as fast. None if no number of them has enough."""
    fitting = [nodes for nodes in sorted(forecasts) if forecasts[nodes].memory.bytes_total <= memory]
    if not fitting:
        return None, ""
    chosen = fitting[0]
    why = "the fewest that have enough memory" if chosen > 1 else "the network fits on one"
    while 2 * chosen in forecasts:
        gain = forecasts[2 * chosen].samples_per_second / forecasts[chosen].samples_per_second
        if gain < WORTH:
            return chosen, f"{why}; {2 * chosen} would be {gain:.2f} times as fast, less than the {WORTH:g} that count"
        chosen, why = 2 * chosen, f"{gain:.2f} times as fast as {chosen}"
    return chosen, f"{why}; more were not looked at"
