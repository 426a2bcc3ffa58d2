"""The ranks of a job as a whole: where each one runs, whether they agree on what to do, and how the work was spread."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from dslide.comm import Communicator, ranks_in_words
from dslide.config import Config
from dslide.errors import ConfigError, known_to_all
from dslide.util.threads import available_cores

MAY_DIFFER = ("threads",)  # options that need not be the same on all ranks


@dataclass(frozen=True)
class LocalRanks:
    """Ranks that share a machine with this one."""

    host: str
    ranks: int  # on this machine, this one included
    sharing: int  # of them, those that may run on the same cores as this one

    @property
    def threads(self) -> int:
        """Threads for this rank, so that all of them together take no more than the cores there are."""
        return max(1, available_cores() // self.sharing)


_known: weakref.WeakKeyDictionary[Communicator, LocalRanks] = weakref.WeakKeyDictionary()


def local_ranks(comm: Communicator) -> LocalRanks:
    """Who else is on this machine; an exchange of all ranks when it is asked for the first time."""
    if comm not in _known:
        _known[comm] = _find_local_ranks(comm)
    return _known[comm]


def _find_local_ranks(comm: Communicator) -> LocalRanks:
    host = socket.gethostname()
    if comm.size == 1:
        return LocalRanks(host, 1, 1)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    others = [there for name, there in comm.gather_objects("machines", [host, cores]) if name == host]
    # Launchers that bind ranks to cores of their own leave nothing to share.
    return LocalRanks(host, len(others), sum(not cores or not set(cores).isdisjoint(there) for there in others))


def check_agreement(comm: Communicator, config: Config, facts: dict[str, Any]) -> None:
    """Raises ConfigError, the same on every rank, if ranks differ in version, options or other facts."""
    options = {name: value for name, value in config.to_dict().items() if name not in MAY_DIFFER}
    every = comm.gather_objects("agreement", {"the version of dslide": version("dslide"), **facts, **options})
    for what, expected in every[0].items():
        others = [rank for rank, given in enumerate(every) if given.get(what) != expected]
        if others:
            have = "has" if len(others) == 1 else "have"
            raise known_to_all(
                ConfigError(
                    f"ranks don't agree on {what}: rank 0 has {expected!r}, {ranks_in_words(others)} {have} "
                    f"{every[others[0]].get(what)!r}"
                )
            )


@dataclass(frozen=True)
class RankStats:
    """What one rank did in training."""

    seconds: float  # from first to last step
    waited: float  # seconds of them in which it could only wait for others
    in_flight: float  # seconds that its exchanges took, summed
    bytes_sent: int
    active: float  # active output neurons of its own in a step, summed over steps


def spread(comm: Communicator, own: RankStats, steps: int) -> dict[str, Any]:
    """How the work was spread over the ranks, for the summary of a run."""
    each = [RankStats(**given) for given in comm.gather_objects("effort", vars(own))]
    compute = [rank.seconds - rank.waited for rank in each]
    flight = sum(rank.in_flight for rank in each)
    return {
        "comm_seconds": _mean([rank.waited for rank in each]),
        "compute_seconds": _mean(compute),
        "overlap": max(0.0, 1 - sum(rank.waited for rank in each) / flight) if flight else 0.0,
        "bytes_sent_per_step": _mean([rank.bytes_sent for rank in each]) / max(steps, 1),
        "imbalance": _imbalance([rank.active for rank in each]),
        "imbalance_compute": _imbalance(compute),
        "per_rank": [
            {
                "rank": number,
                "active_neurons_mean": rank.active / max(steps, 1),
                "compute_seconds": seconds,
                "comm_seconds": rank.waited,
                "bytes_sent_per_step": rank.bytes_sent / max(steps, 1),
            }
            for number, (rank, seconds) in enumerate(zip(each, compute, strict=True))
        ],
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _imbalance(values: Sequence[float]) -> float:
    """The largest over the mean: 1 if all are equal."""
    mean = _mean(values)
    return max(values) / mean if mean > 0 else 1.0
