"""Reading data: text, and batches of a memory-mapped folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.lib.processes import System
from bench.lib.sections import Metric, Section
from bench.lib.workload import make_data, timed_calls
from bench.single.plan import Plan
from dslide.data import convert, load

BATCH = 256


def read(folder: str, seconds: float, seed: int) -> dict[str, float]:
    """Speed of both, from the file cache."""
    text, mapped = Path(folder) / "train.txt", Path(folder) / "mapped"
    parsing = timed_calls(lambda: load(text, threads=1), seconds)
    if not mapped.exists():
        convert(text, mapped)
    data, random = load(mapped), np.random.default_rng(seed)

    def take() -> None:
        rows = random.integers(0, len(data), BATCH)
        data.x.take(rows)
        data.y.take(rows)

    return {
        "megabytes_per_second": text.stat().st_size / 1e6 / parsing,
        "microseconds_per_batch": 1e6 * timed_calls(take, seconds),
    }


def section(plan: Plan) -> Section:
    """Both in one row."""
    folder = make_data(plan.data, plan.speed)
    size = (folder / "train.txt").stat().st_size / 1e6
    return Section(
        "Reading",
        f"XMLRepository text of {size:,.0f} MB on one core, and batches of {BATCH} random rows from the folder that "
        "`dslide convert` makes of it; both from the file cache.",
        [System("dslide.data", f"{__name__}:read", {"folder": str(folder), "seconds": plan.seconds})],
        [
            Metric("megabytes_per_second", "text, MB/s"),
            Metric("microseconds_per_batch", "memory-mapped batch, microseconds"),
        ],
    )
