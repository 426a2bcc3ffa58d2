"""How much is measured: sizes, rounds and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lib.workload import AMAZON, SMALL, Shape, make_data

QUICK_ACCURACY = Shape(8_000, 20_000, 20_000)


@dataclass(frozen=True)
class Plan:
    """Settings of a run of the benchmark."""

    data: Path  # folder for all data
    threads: int
    rounds: int
    seconds: float  # for which a run is timed
    speed: Shape = AMAZON  # data for everything but accuracy
    growth: tuple[int, ...] = (67_009, 670_091, 6_700_910)  # numbers of labels
    accuracy: Shape = SMALL
    epochs: int = 5  # of training for accuracy
    table_epochs: int = 3  # of training to measure the cost of hash tables

    def timed_work(self, times: float = 1) -> dict[str, Any]:
        """Arguments of systems that are timed on the data for speed, for so many times `seconds`."""
        folder = str(make_data(self.data, self.speed))
        return {"folder": folder, "threads": self.threads, "seconds": times * self.seconds}


def full_plan(data: Path, threads: int) -> Plan:
    return Plan(data, threads, rounds=3, seconds=8, table_epochs=24)  # as many steps as an epoch of Amazon-670K


def quick_plan(data: Path, threads: int) -> Plan:
    """A few minutes on two cores."""
    return Plan(data, threads, rounds=2, seconds=2, growth=Plan.growth[:2], accuracy=QUICK_ACCURACY, epochs=3)
