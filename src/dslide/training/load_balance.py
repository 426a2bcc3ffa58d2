"""How evenly the work of a training was balanced over its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dslide.comm import Communicator


@dataclass(frozen=True)
class RankStats:
    """What one rank did in training."""

    seconds: float  # from first to last step
    waited: float  # seconds of them in which it only waited for other ranks
    in_flight: float  # seconds from posting each exchange to its completion, summed
    bytes_sent: int
    active: float  # active output neurons of this rank in a step, summed over steps


def load_balance(comm: Communicator, own: RankStats, steps: int) -> dict[str, Any]:
    """Compute and communication of all ranks, for the summary of a run. A collective of all ranks."""
    each = [RankStats(**given) for given in comm.gather_objects("rank stats", vars(own))]
    per_rank = [
        {
            "rank": number,
            "active_neurons_mean": rank.active / max(steps, 1),
            "compute_seconds": rank.seconds - rank.waited,
            "comm_seconds": rank.waited,
            "bytes_sent_per_step": rank.bytes_sent / max(steps, 1),
        }
        for number, rank in enumerate(each)
    ]

    def mean(name: str) -> float:
        return fmean(rank[name] for rank in per_rank)

    def imbalance(name: str) -> float:  # the largest over the mean: 1 if all are equal
        return max(rank[name] for rank in per_rank) / mean(name) if mean(name) > 0 else 1.0

    flight = sum(rank.in_flight for rank in each)
    return {
        **{name: mean(name) for name in ("comm_seconds", "compute_seconds", "bytes_sent_per_step")},
        "overlap": max(0.0, 1 - sum(rank.waited for rank in each) / flight) if flight else 0.0,
        "imbalance": imbalance("active_neurons_mean"),
        "imbalance_compute": imbalance("compute_seconds"),
        "per_rank": per_rank,
    }
