"""How long one rank of R computes for a step, for several R, measured on this machine in a few seconds: the rank is
alone, and the others' messages are made up (lone_rank.py). Numbers of ranks for which there was no time are
interpolated; so are, by Amdahl's law, more cores than this machine has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dslide.config import Config
from dslide.planner.lone_rank import LoneRank
from dslide.planner.trial_rows import TrialRows
from dslide.planner.trial_steps import StepTime, time_step
from dslide.training import phases
from dslide.util.memory import available_bytes
from dslide.util.threads import available_cores

SECONDS = 5.0  # for all measurements; what has begun by then is finished
TRIAL_SECONDS = 0.3  # for the steps of each
# Parameters of the first and the last layer each, as long as those, with two moments each, fit into an eighth of the
# memory that is free. Layers of a quarter as many took a tenth less time: more of them stays in caches.
MOST_TRIAL_PARAMETERS, PARAMETER_BYTES = 64_000_000, 12


@dataclass(frozen=True)
class Calibration:
    """Steps of a rank of R, by R."""

    measured: Mapping[int, StepTime]
    cores: int  # that they are for
    measured_cores: tuple[int, ...]  # with which they were measured

    @property
    def is_extrapolated(self) -> bool:
        """Whether they are for more cores than there were to measure with."""
        return self.cores > max(self.measured_cores)

    def step(self, ranks: int) -> StepTime:
        """That of a rank of so many, measured or interpolated: as if every phase had a part that ranks share and a part
        that they don't, a + b / R."""
        if ranks in self.measured:
            return self.measured[ranks]
        below = max((r for r in self.measured if r < ranks), default=min(self.measured))
        above = min((r for r in self.measured if r > ranks), default=max(self.measured))
        if below == above:
            return self.measured[below]
        share = (1 / below - 1 / ranks) / (1 / below - 1 / above)
        return _combined(self.measured[below], self.measured[above], lambda a, b: (1 - share) * a + share * b)


def calibrate(
    config: Config, rows: TrialRows, ranks: Iterable[int], cores: int, linked: bool = True, seconds: float = SECONDS
) -> Calibration:
    """Measures a rank of each of `ranks`, in this order, as long as there is time, the first two in any case."""
    begin, measured = time.perf_counter(), {}
    here = available_cores()
    threads = (cores,) if cores <= here else tuple(sorted({1, here}))
    most = trial_parameters()
    for number, size in enumerate(dict.fromkeys(ranks)):
        if number >= 2 and time.perf_counter() - begin > seconds:
            break
        found = {c: time_alone(config.replace(threads=c), rows, size, linked, TRIAL_SECONDS, most) for c in threads}
        measured[size] = found[cores] if cores in found else on_cores(found, cores)
    return Calibration(measured, cores, threads)


def on_cores(measured: Mapping[int, StepTime], cores: int) -> StepTime:
    """A step on more cores than it was measured with: on one core, and on several. Amdahl's law for each phase, of
    which a part is divided among cores and the rest is not. If it was measured on one core alone, nothing is known of
    more, and they are taken to bring nothing."""
    few, many = min(measured), max(measured)
    if few == many:
        return measured[few]

    def extrapolated(one: float, several: float) -> float:
        parallel = max(0.0, one - several) / (1 / few - 1 / many)
        return max(0.0, several - parallel * (1 / many - 1 / cores))

    return _combined(measured[few], measured[many], extrapolated)


def _combined(first: StepTime, second: StepTime, rule: Callable[[float, float], float]) -> StepTime:
    """A step whose times are made of those of two others."""
    names = [name for name in phases.ALL if name in first.phases or name in second.phases]
    found = {name: rule(first.phases.get(name, 0.0), second.phases.get(name, 0.0)) for name in names}
    renewal = rule(first.renewal, second.renewal)
    return StepTime(found, rule(first.waiting, second.waiting), renewal, second.active)


def trial_parameters() -> int:
    """To how many parameters the first and the last layer of a trial are cut down here."""
    return min(MOST_TRIAL_PARAMETERS, available_bytes() // 8 // PARAMETER_BYTES)


def time_alone(
    config: Config, rows: TrialRows, ranks: int, linked: bool, seconds: float, most_parameters: int
) -> StepTime:
    """The step of one rank of so many, as `time_step`. It never waits: what seems so is the taking in of messages."""
    comm = LoneRank(ranks)
    try:
        step = time_step(config, rows, comm, seconds, linked, most_parameters)
    finally:
        comm.close()
    found = dict(step.phases)
    if step.waiting:
        found[phases.PACKING] = found.get(phases.PACKING, 0.0) + step.waiting
    return StepTime(found, 0.0, step.renewal, step.active)
