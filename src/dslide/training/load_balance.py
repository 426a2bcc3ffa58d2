"""How evenly the work of a training was balanced over its ranks."""

from __future__ import annotations

from collections.abc import Sequence
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
    compute = [rank.seconds - rank.waited for rank in each]
    flight = sum(rank.in_flight for rank in each)
    return {
        "comm_seconds": fmean(rank.waited for rank in each),
        "compute_seconds": fmean(compute),
        "overlap": max(0.0, 1 - sum(rank.waited for rank in each) / flight) if flight else 0.0,
        "bytes_sent_per_step": fmean(rank.bytes_sent for rank in each) / max(steps, 1),
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


def _imbalance(values: Sequence[float]) -> float:
    """The largest over the mean: 1 if all are equal."""
    mean = fmean(values)
    return max(values) / mean if mean > 0 else 1.0
