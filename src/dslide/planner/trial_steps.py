"""The time of a training step, measured with a few steps of a smaller network of the same kind: on this machine, on all
ranks of a job, or on one rank of a job whose others are simulated (lone_rank.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dslide.comm import Communicator
from dslide.comm.votes import Vote
from dslide.config import Config
from dslide.model.defaults import resolve
from dslide.model.label_prior import LabelPrior, has_label_prior
from dslide.model.network import Network
from dslide.planner.trial_rows import TrialRows
from dslide.training import phases
from dslide.training.profiler import Profile, attach
from dslide.util.threads import use_threads

MOST_PARAMETERS = 16_000_000  # of the smaller network's first and of its last layer
LEAST_STEPS, MOST_STEPS = 4, 50
MOST_TIMES = 2  # fewer than LEAST_STEPS, if those take this many times the seconds given


@dataclass(frozen=True)
class StepTime:
    """One training step, in seconds."""

    phases: Mapping[str, float]  # of computing (training/phases.py)
    waiting: float  # for other ranks, without overlapped computing
    rebuild: float  # of hash tables when all neurons have changed; not part of the step
    active: float  # output neurons of a row, on all ranks

    @property
    def compute(self) -> float:
        return sum(self.phases.values())

    @property
    def total(self) -> float:
        return self.compute + self.waiting

    def of_rows(self, factor: float) -> StepTime:
        """The time of a step with so many times the rows."""
        scaled = {name: factor * seconds for name, seconds in self.phases.items()}
        return StepTime(scaled, factor * self.waiting, self.rebuild, self.active)


def time_step(
    config: Config, rows: TrialRows, comm: Communicator, seconds: float = 1.0, prior: bool = True,
    most_parameters: int = MOST_PARAMETERS, average: Callable[[list[float]], Any] = np.median,
) -> StepTime:  # fmt: skip
    """Times a training step for about `seconds`, on all ranks together; `prior` as in `memory.plan`. `average`: over
    steps. The median leaves out what disturbs a few.

    Features and labels are reduced to `most_parameters` of the first and of the last layer on each rank: the time of a
    step depends on them only through caches, except that a full output layer's is proportional to the labels. Traffic
    does not depend on them. Layers are padded to equally many neurons on every rank.
    """
    use_threads(config.threads)
    config = resolve(config, rows.labels)
    config = config.replace(hidden=tuple(_equal(n, comm.size) for n in config.hidden))
    most_labels = max(256, comm.size * most_parameters // (config.hidden or (rows.features,))[-1])
    features = max(256, comm.size * most_parameters // config.hidden[0]) if config.hidden else rows.features
    few = rows.fewer(features, most_labels)
    labels = _equal(few.labels, comm.size)
    network = Network(config, few.features, labels, comm=comm)
    for layer in network.layers:
        for array in layer.arrays.values():
            array += 0  # touches all pages: a long run pays for page faults only once
    if prior and has_label_prior(config):
        network.prior = _made_up_prior(network, rows.prior_labels(config.prior_labels))

    profile = Profile()
    attach(profile, network)
    times: list[float] = []
    over = False
    while not over:
        passed = sum(times[1:])
        enough = passed >= seconds and (len(times) > LEAST_STEPS or passed >= MOST_TIMES * seconds)
        vote = Vote.STOP if enough or len(times) >= MOST_STEPS else Vote.NONE
        profile.begin(comm)
        start = time.perf_counter()
        with profile.phase(phases.READING):
            chosen = np.arange(len(times) * config.batch_size, (len(times) + 1) * config.batch_size) % len(few.x)
            x, y = few.x.take(chosen), few.y.take(chosen)
        result = network.train_step(x, network.loss.targets(y), len(times), 1e-4, vote)
        times.append(time.perf_counter() - start)
        profile.end()
        if len(times) == 1:
            if network.cells is not None:  # made of the first step's rows
                network.rebuild_tables()
            first = profile.reset()  # of the step that builds the hash tables
        over = bool(result.votes.any & Vote.STOP)  # on all ranks after the same step
    found = {name: phase.seconds for name, phase in profile.phases.items() if phase.seconds > 0}
    # The average of all steps but the first, which builds the hash tables; split into phases like their sum.
    scale = float(average(times[1:])) / sum(found.values())
    waiting = scale * found.pop(phases.WAITING, 0.0)
    step = {name: scale * spent for name, spent in found.items()}
    if config.output == "full":
        for name in {phases.FIRST_PASS, phases.SECOND_PASS} & step.keys():
            step[name] *= rows.labels / labels
    rebuild = first[phases.REBUILDING].seconds * (rows.labels / labels)
    return StepTime(step, waiting, rebuild, result.active)


def _equal(neurons: int, ranks: int) -> int:
    """The neurons rounded up to a multiple of the ranks; fewer neurons than ranks stay so, and are refused later."""
    return -(-neurons // ranks) * ranks if neurons >= ranks else neurons


def _made_up_prior(network: Network, labels: int) -> LabelPrior:
    """A label prior with this rank's share of `labels` labels for every feature."""
    own = network.output.neurons
    each = min(own, -(-labels // network.shard.size))
    begin = np.arange(network.features + 1, dtype=np.int64) * each
    first = np.random.default_rng(0).integers(0, own, network.features)
    neuron = np.sort((first[:, None] + np.arange(each) * (own // max(each, 1))) % own, axis=1)
    weight, share = (np.full(size, 0.01, np.float32) for size in (neuron.size, own))
    rows = np.ones(own, np.int32)
    return LabelPrior.untrained(begin, neuron.astype(np.int32).reshape(-1), weight, share, rows, network.config)
