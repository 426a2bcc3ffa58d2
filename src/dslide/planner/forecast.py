"""Forecast of training on several nodes with one rank each: memory, traffic, time, the bottleneck, and how many nodes
are worth it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from dslide.config import Config
from dslide.data import Data, Dataset
from dslide.data.dataset import rows_bytes
from dslide.model.defaults import ResolvedConfig, resolve
from dslide.planner.calibration import Calibration, calibrate
from dslide.planner.memory import Plan, plan
from dslide.planner.step_time import NetworkSpeed, NodeStep, node_step
from dslide.planner.traffic import bytes_on_wire, rounds_per_step
from dslide.planner.trial_rows import TrialRows, made_up, rows_of
from dslide.training.schedules import RebuildSchedule

NODES = (1, 2, 4, 8, 16)  # always in the forecast, as far as the network can be split
WORTH = 1.5  # the least speed-up for which to double the nodes
WORTH_ROUNDING = 1.05  # and for which to exchange fewer bits


@dataclass(frozen=True)
class Workload:
    """A training to plan: its options, the size of its data, and rows to time its steps with."""

    asked: Config  # the options, of which some may be open: they depend on the number of nodes
    trial: TrialRows
    data_bytes: int
    with_prior: bool  # the data is such that there can be a label prior
    data: Data | None = None

    @classmethod
    def of_data(cls, config: Config, data: Data) -> Workload:
        trial = rows_of(data, resolve(config, data.labels, data, NODES[-1]).batch_size, config.seed)
        return cls(config, trial, data.data_bytes, isinstance(data, Dataset), data)

    @classmethod
    def of_size(
        cls, config: Config, features: int, labels: int, features_per_row: int, labels_per_row: int, rows: int,
        dense_features: int = 0,
    ) -> Workload:  # fmt: skip
        """Training on data of which only the size is known; `rows` is 0 if unknown. Of the features the last
        `dense_features` are dense, and held as float32."""
        sparse = 0 if dense_features == features else features_per_row
        if dense_features == features and config.prior_labels < 0:
            config = config.replace(prior_labels=0)
        batch_size = resolve(config, labels).batch_size
        trial = made_up(batch_size, features, labels, sparse, labels_per_row, rows, dense_features)
        data_bytes = rows_bytes(rows, rows * (sparse + labels_per_row)) + 4 * rows * dense_features if rows else 0
        return cls(config, trial, data_bytes, with_prior=dense_features < features)

    def config(self, nodes: int = 1) -> ResolvedConfig:
        """The options of training on so many nodes."""
        return resolve(self.asked, self.trial.labels, self.data, nodes)

    @property
    def most_nodes(self) -> int:
        """The number of nodes that the narrowest layer can be split over."""
        return min([self.trial.labels, *self.config().hidden])

    def node_counts(self, nodes: int) -> list[int]:
        """Numbers of nodes to compare, this one among them, ascending."""
        return sorted({nodes, *(count for count in NODES if count <= self.most_nodes)})

    def memory(self, nodes: int, cores: int) -> Plan:
        """The memory of each node; with unequal shares for so many nodes, of the one with the largest."""
        trial, shares = self.trial, self.asked.shares
        largest = Fraction(max(shares), sum(shares)) if len(shares) == nodes > 1 else None
        return plan(
            self.config(nodes), trial.features, trial.labels, self.data_bytes, nodes, cores, self.with_prior,
            trial.values_per_row[0], rows=trial.rows, labels_per_row=trial.values_per_row[1],
            dense_features=trial.dense_features, share=largest,
        )  # fmt: skip

    def calibrate(self, nodes: int, cores: int) -> Calibration:
        """Times steps of this training, cut down, on this machine: for the extremes of `node_counts` first, then for
        `nodes`, and for the rest as time allows."""
        counts = self.node_counts(nodes)
        return calibrate(self.config, self.trial, [1, counts[-1], nodes, *counts[2:], *counts], cores, self.with_prior)


@dataclass(frozen=True)
class Forecast:
    """Training on `nodes` nodes."""

    nodes: int
    memory: Plan
    bytes_sent: int  # by each node in a step, headers included; an upper bound
    rounds: int
    step: NodeStep
    phase: str  # of computing that takes longest
    rebuild: float  # seconds to rebuild the hash tables when all neurons have changed
    changed: float  # share of neurons that a step changes
    rows: int  # in a step

    @property
    def samples_per_second(self) -> float:
        return self.rows / self.step.total

    def seconds(self, config: Config, steps: int) -> float:
        """The time of the first `steps` steps, rebuilds of hash tables included."""
        return steps * self.step.total + rebuild_cost(config, steps, self.changed) * self.rebuild

    def bottleneck(self, memory: int) -> str:
        """What limits the speed, with `memory` bytes on each node."""
        if self.memory.bytes_total > memory:
            return "memory"
        found = self.step.bottleneck
        return f"compute ({self.phase})" if found == "compute" else found


def forecast(config: Config, labels: int, memory: Plan, calibration: Calibration, network: NetworkSpeed) -> Forecast:
    """Training on the nodes of the memory plan."""
    nodes, config = memory.ranks, resolve(config, labels)
    timed = calibration.step(nodes)
    phase = max(timed.phases, key=lambda name: timed.phases[name])
    changed = timed.active / labels if config.active_sets == "shared" else 1.0
    return Forecast(
        nodes, memory, bytes_on_wire(config, labels, nodes), rounds_per_step(config, labels),
        node_step(config, labels, nodes, timed.compute, network), phase, timed.rebuild, changed, config.batch_size,
    )  # fmt: skip


def rebuild_cost(config: Config, steps: int, changed: float) -> float:
    """The time of all rebuilds of hash tables in `steps` steps, the first build included, in units of a rebuild of all
    neurons. A rebuild hashes the neurons that changed since the last one; each step changes a random share of them.
    Cells are not built at first, and each rebuild of them is one of all neurons."""
    rebuilds = RebuildSchedule(config.rebuild_every, config.rebuild_growth).before(steps)
    if config.output == "cells":
        return float(len(list(rebuilds)))
    total, last = 1.0, 0
    for step in rebuilds:
        total -= math.expm1((last - step) * changed)
        last = step
    return total


def recommended(forecasts: Mapping[int, Forecast], memory: int) -> tuple[int | None, str]:
    """The number of nodes to use, and why: the fewest with enough memory, doubled while training gets `WORTH` times as
    fast. None if no number has enough memory."""
    fitting = [nodes for nodes in sorted(forecasts) if forecasts[nodes].memory.bytes_total <= memory]
    if not fitting:
        return None, ""
    chosen = fitting[0]
    why = "the fewest that have enough memory" if chosen > 1 else "the network fits on one"
    while 2 * chosen in forecasts:
        gain = forecasts[2 * chosen].samples_per_second / forecasts[chosen].samples_per_second
        if gain < WORTH:
            return chosen, f"{why}; {2 * chosen} would be {gain:.2f} times as fast, less than {WORTH:g}"
        chosen, why = 2 * chosen, f"{gain:.2f} times as fast as {chosen}"
    return chosen, f"{why}; more were not considered"


def recommended_wire(
    config: Config, labels: int, memory: Plan, calibration: Calibration, network: NetworkSpeed
) -> tuple[str, float]:
    """The wire format for the nodes of a plan, and how many times as fast training is with it as with that of the
    options: theirs, or int8 if that is faster."""
    now, with_int8 = (
        forecast(each, labels, memory, calibration, network).samples_per_second
        for each in (config, config.replace(wire="int8"))
    )
    return ("int8", with_int8 / now) if with_int8 >= WORTH_ROUNDING * now else (config.wire, 1.0)
