"""How much is measured: sizes, rounds and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .workload import AMAZON, Shape

ACCURACY = Shape(20_000, 20_000, 30_000)  # small enough for full softmax
QUICK_ACCURACY = Shape(8_000, 20_000, 20_000)


@dataclass(frozen=True)
class Plan:
    """What a run of the benchmark does."""

    data: Path  # folder for all data
    threads: int
    rounds: int
    seconds: float  # for which a run is timed
    speed: Shape = AMAZON  # of the data for everything but accuracy
    growth: tuple[int, ...] = (67_009, 670_091, 6_700_910)  # numbers of labels
    accuracy: Shape = ACCURACY
    epochs: int = 5  # of training for accuracy
    table_epochs: int = 3  # of training to see what hash tables cost


def full_plan(data: Path, threads: int) -> Plan:
    return Plan(data, threads, rounds=3, seconds=8, table_epochs=24)  # with as many steps as Amazon-670K's rows make


def quick_plan(data: Path, threads: int) -> Plan:
    """A few minutes on two cores."""
    return Plan(data, threads, rounds=2, seconds=2, growth=Plan.growth[:2], accuracy=QUICK_ACCURACY, epochs=3)
