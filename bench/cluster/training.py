"""Measurements of a system that trains on a lab: functions that every rank of a job calls; rank 0 has the results.

A system is a `Rank`; this module has what all of them share: warm-up, when to stop, counters, clocks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from bench.lib.workload import WARM_UP_STEPS, read_data, write_to
from dslide import netlab
from dslide.data import Dataset
from dslide.util.memory import peak_rss_bytes

UNLIMITED = "unlimited"


class Rank(Protocol):
    """One rank of a system that trains. All ranks call the same methods in the same order."""

    rank: int

    def step(self) -> int:
        """Trains on the next batch; returns the number of rows that all ranks together trained on."""

    def gather(self, value: float) -> list[float]:
        """The values of all ranks, in rank order (an all-gather)."""

    def waiting(self) -> Callable[[float], float]:
        """Called before timed steps. Its result is called after them, with the seconds of a step, and returns the share
        of them in which this rank waited for the network."""

    def state(self) -> list[np.ndarray]:
        """Parameters and moments after a step, not copied."""

    def precision(self, test: Dataset) -> float:
        """P@1 over all labels, the same on all ranks."""


def speed(
    lab: str, kind: str, rate: str, folder: str, seconds: float, least_steps: int, seed: int, **options: Any
) -> dict[str, float]:
    """Speed, bytes, waiting and memory of a system in some seconds of training."""
    return speed_of(_make(kind, read_data(folder), seed, options), lab, rate, seconds, least_steps)


def speed_of(rank: Rank, lab: str, rate: str, seconds: float, least_steps: int) -> dict[str, float]:
    """The same of a rank that there is. Links are unlimited during warm-up."""
    _limit(rank, lab, UNLIMITED)
    begin, steps = time.perf_counter(), 0
    while _rank_0(rank, steps < WARM_UP_STEPS and (steps == 0 or time.perf_counter() - begin < seconds)):
        rank.step()
        steps += 1
    write_to(rank.state())
    _limit(rank, lab, rate)
    before, waiting = _sent(rank, lab), rank.waiting()
    passed, steps, rows = train_for(rank, seconds, least_steps)
    after, peak = _sent(rank, lab), peak_rss_bytes()
    waited, sent = rank.gather(waiting(passed / steps)), after - before
    return {
        "samples_per_second": rows / passed,
        "step_seconds": passed / steps,
        "steps": steps,
        "kilobytes_per_sample": sent / rows / 1e3,
        "megabytes_per_step": sent / len(waited) / steps / 1e6,
        "waiting": 100 * statistics.mean(waited),
        "peak_gigabytes": max(rank.gather(peak)) / 1e9,
    }


def curve(
    lab: str, kind: str, rate: str, folder: str, seconds: float, every: float, seed: int, **options: Any
) -> dict[str, Any]:
    """P@1 after every so many seconds of training, tests not included."""
    test = read_data(folder, "test")
    rank = _make(kind, read_data(folder), seed, options)
    _limit(rank, lab, rate)
    points: list[list[float]] = []
    passed, steps = 0.0, 0
    while _rank_0(rank, passed < seconds):
        more, done, _ = train_for(rank, every, least_steps=1)
        passed, steps = passed + more, steps + done
        points.append([passed, rank.precision(test)])
    return {"curve": points, "seconds": passed, "steps": steps, "p_at_1": points[-1][1]}


def train_for(rank: Rank, seconds: float, least_steps: int) -> tuple[float, int, int]:
    """Trains for about so many seconds by rank 0's clock, and at least so many steps; returns seconds, steps and rows
    of all ranks. Ranks synchronise on the clock after 1, 2, 4, ... steps, which costs next to nothing."""
    begin, steps, rows, more = time.perf_counter(), 0, 0, 1
    while more:
        for _ in range(more):
            rows += rank.step()
        steps += more
        more = _rank_0(rank, steps_left(steps, time.perf_counter() - begin, seconds, least_steps))
    return time.perf_counter() - begin, steps, rows


def steps_left(steps: int, passed: float, seconds: float, least_steps: int) -> int:
    """Steps until the clock is read again, at most as many as were done; 0 at the end."""
    if passed < seconds:
        return max(1, min(steps, int((seconds - passed) / passed * steps)))
    return min(steps, max(0, least_steps - steps))


def _make(kind: str, data: Dataset, seed: int, options: dict[str, Any]) -> Rank:
    """A rank of a system; PyTorch is not imported where dslide is measured."""
    if kind == "dslide":
        from bench.cluster.dslide_rank import DslideRank

        return DslideRank(data, seed, **options)
    from bench.cluster.ddp_rank import DdpRank

    return DdpRank(data, seed, **options)


def _rank_0(rank: Rank, value: int) -> int:
    """The value of rank 0."""
    return int(rank.gather(value)[0])


def _limit(rank: Rank, lab: str, rate: str) -> None:
    """Sets the rate of all links while no rank trains."""
    rank.gather(0)
    if rank.rank == 0:
        netlab.set_rate(rate, lab)
    rank.gather(0)


def _sent(rank: Rank, lab: str) -> int:
    """Bytes sent by the interfaces of all nodes, headers included, read while no rank trains; 0 except on rank 0."""
    rank.gather(0)
    sent = sum(node.sent for node in netlab.traffic(netlab.find(lab))) if rank.rank == 0 else 0
    rank.gather(0)
    return sent
