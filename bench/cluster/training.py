"""What is measured of a system in training on a lab: functions that every rank of a job calls, for figures on rank 0.

A system is a `Rank`; what all of them share is here: batches, warm-up, when to stop, counters, clocks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from dslide import netlab
from dslide.data import Dataset
from dslide.memory import peak_rss_bytes

from ..workload import WARM_UP_STEPS, read_data

UNLIMITED = "unlimited"


class Rank(Protocol):
    """One rank of a system that trains. All ranks call the same methods in the same order."""

    rank: int

    def step(self) -> int:
        """Trains on the next batch; returns how many rows all ranks together trained on."""

    def gather(self, value: float) -> list[float]:
        """What every rank gave, in rank order, after all of them have called this."""

    def waiting(self) -> Callable[[float], float]:
        """Called before steps that are timed. What it returns is called after them, with the seconds that one took, for
        the share of these in which this rank waited for the network."""

    def state(self) -> list[np.ndarray]:
        """Parameters and moments, in the memory that is used, after a step."""

    def precision(self, test: Dataset) -> float:
        """P@1 over all labels, the same on all ranks."""


def speed(
    lab: str, kind: str, rate: str, folder: str, seconds: float, least_steps: int, seed: int, **options: Any
) -> dict[str, float]:
    """Speed, bytes, waiting and memory of a system in some seconds of training. Links have no limit before."""
    rank = _make(kind, read_data(folder), seed, options)
    _limit(rank, lab, UNLIMITED)
    begin, steps = time.perf_counter(), 0
    while _told(rank, steps < WARM_UP_STEPS and (steps == 0 or time.perf_counter() - begin < seconds)):
        rank.step()
        steps += 1
    for array in rank.state():
        array += 0  # the system gives memory when it is first written to; a long run pays for that only once
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
    """P@1 after every so many seconds of training, which testing is not counted in."""
    test = read_data(folder, "test")
    rank = _make(kind, read_data(folder), seed, options)
    _limit(rank, lab, rate)
    points: list[list[float]] = []
    passed, steps = 0.0, 0
    while _told(rank, passed < seconds):
        more, done, _ = train_for(rank, every, least_steps=1)
        passed, steps = passed + more, steps + done
        points.append([passed, rank.precision(test)])
    return {"curve": points, "seconds": passed, "steps": steps, "p_at_1": points[-1][1]}


def train_for(rank: Rank, seconds: float, least_steps: int) -> tuple[float, int, int]:
    """Trains for about so many seconds, and at least so many steps; returns seconds, steps and rows of all ranks. Rank
    0's clock counts. It is asked after 1, 2, 4, ... steps, which costs nothing that could be measured."""
    begin, steps, rows, more = time.perf_counter(), 0, 0, 1
    while more:
        for _ in range(more):
            rows += rank.step()
        steps += more
        more = _told(rank, steps_left(steps, time.perf_counter() - begin, seconds, least_steps))
    return time.perf_counter() - begin, steps, rows


def steps_left(steps: int, passed: float, seconds: float, least_steps: int) -> int:
    """Steps to do before the clock is asked again, at most as many as were done; 0 when it is enough."""
    if passed < seconds:
        return max(1, min(steps, int((seconds - passed) / passed * steps)))
    return min(steps, max(0, least_steps - steps))


def _make(kind: str, data: Dataset, seed: int, options: dict[str, Any]) -> Rank:
    """A rank of a system; PyTorch is not loaded where dslide is measured."""
    if kind == "dslide":
        from .dslide_rank import DslideRank

        return DslideRank(data, seed, **options)
    from .ddp_rank import DdpRank

    return DdpRank(data, seed, **options)


def _told(rank: Rank, value: int) -> int:
    """What rank 0 says."""
    return int(rank.gather(value)[0])


def _limit(rank: Rank, lab: str, rate: str) -> None:
    """Sets the rate of all links while nobody trains."""
    rank.gather(0)
    if rank.rank == 0:
        netlab.set_rate(rate, lab)
    rank.gather(0)


def _sent(rank: Rank, lab: str) -> int:
    """Bytes that the interfaces of all nodes have sent, headers included, read while nobody trains; 0 but on rank 0."""
    rank.gather(0)
    sent = sum(node.sent for node in netlab.traffic(netlab.find(lab))) if rank.rank == 0 else 0
    rank.gather(0)
    return sent
