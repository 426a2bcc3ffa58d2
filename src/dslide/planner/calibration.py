"""The computing time of a step on one rank of R, for several R, measured on this machine in a few seconds. The rank is
alone, and the messages of others are simulated (lone_rank.py). Other numbers of ranks are interpolated; more cores than
this machine has are extrapolated by Amdahl's law."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

from dslide.config import Config
from dslide.planner.lone_rank import LoneRank
from dslide.planner.trial_rows import TrialRows
from dslide.planner.trial_steps import StepTime, time_step
from dslide.training import phases
from dslide.util.memory import available_bytes
from dslide.util.threads import available_cores

SECONDS = 5.0  # for all measurements; the last one is finished
TRIAL_SECONDS = 0.3  # for the steps of each
# Parameters of the first and of the last layer, as long as those, with two moments each, fit into an eighth of free
# memory. Layers of a quarter of that took a tenth less time: more of them stays in caches.
MOST_TRIAL_PARAMETERS, PARAMETER_BYTES = 64_000_000, 12


@dataclass(frozen=True)
class Calibration:
    """Step times of one rank of R, by R."""

    measured: Mapping[int, StepTime]
    cores: int  # that the times are for
    measured_cores: tuple[int, ...]  # that were used to measure
    batch_of: Callable[[int], int] = lambda ranks: 1  # rows in a step of so many ranks

    @property
    def is_extrapolated(self) -> bool:
        """Whether the times are for more cores than this machine has."""
        return self.cores > max(self.measured_cores)

    def step(self, ranks: int) -> StepTime:
        """The step of one rank of `ranks`, measured or interpolated: each phase takes a + b / R for a row, a serial
        part and one that ranks share. Batches in proportion to the ranks divide what a step takes in any case."""
        if ranks in self.measured:
            return self.measured[ranks]
        below = max((r for r in self.measured if r < ranks), default=min(self.measured))
        above = min((r for r in self.measured if r > ranks), default=max(self.measured))
        first, last = (self.measured[r].of_rows(self.batch_of(ranks) / self.batch_of(r)) for r in (below, above))
        if below == above:
            return first
        share = (1 / below - 1 / ranks) / (1 / below - 1 / above)
        return _combined(first, last, lambda a, b: (1 - share) * a + share * b)


def calibrate(
    config_of: Callable[[int], Config], rows: TrialRows, ranks: Iterable[int], cores: int, prior: bool = True,
    seconds: float = SECONDS,
) -> Calibration:  # fmt: skip
    """Measures one rank of each of `ranks`, in this order, until the time is up, but at least two. `config_of` gives
    the options of so many ranks; `prior` as in `memory.plan`."""
    begin, measured = time.perf_counter(), {}
    here = available_cores()
    threads = (cores,) if cores <= here else tuple(sorted({1, here}))
    most = trial_parameters()
    for number, size in enumerate(dict.fromkeys(ranks)):
        if number >= 2 and time.perf_counter() - begin > seconds:
            break
        config = config_of(size)
        found = {c: time_alone(config.replace(threads=c), rows, size, prior, TRIAL_SECONDS, most) for c in threads}
        measured[size] = found[cores] if cores in found else on_cores(found, cores)
    return Calibration(measured, cores, threads, lambda size: config_of(size).batch_size)


def on_cores(measured: Mapping[int, StepTime], cores: int) -> StepTime:
    """A step on more cores than it was measured with, on one core and on several: Amdahl's law for each phase. Measured
    on one core alone, more cores are assumed to bring nothing."""
    few, many = min(measured), max(measured)
    if few == many:
        return measured[few]

    def extrapolated(one: float, several: float) -> float:
        parallel = max(0.0, one - several) / (1 / few - 1 / many)
        return max(0.0, several - parallel * (1 / many - 1 / cores))

    return _combined(measured[few], measured[many], extrapolated)


def _combined(first: StepTime, second: StepTime, rule: Callable[[float, float], float]) -> StepTime:
    """A step whose times are computed from those of two others."""
    names = [name for name in phases.ALL if name in first.phases or name in second.phases]
    found = {name: rule(first.phases.get(name, 0.0), second.phases.get(name, 0.0)) for name in names}
    return StepTime(found, rule(first.waiting, second.waiting), rule(first.rebuild, second.rebuild), second.active)


def trial_parameters() -> int:
    """The parameters to which the first and the last layer of a trial are reduced on this machine."""
    return min(MOST_TRIAL_PARAMETERS, available_bytes() // 8 // PARAMETER_BYTES)


def time_alone(
    config: Config, rows: TrialRows, ranks: int, prior: bool, seconds: float, most_parameters: int
) -> StepTime:
    """`time_step` for one rank of `ranks`. It never waits: time measured as waiting is that of unpacking messages."""
    with closing(LoneRank(ranks)) as comm:
        step = time_step(config, rows, comm, seconds, prior, most_parameters)
    unpacking = {phases.PACKING: step.phases.get(phases.PACKING, 0.0) + step.waiting} if step.waiting else {}
    return StepTime({**step.phases, **unpacking}, 0.0, step.rebuild, step.active)
