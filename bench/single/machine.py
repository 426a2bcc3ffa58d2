"""The machine and its peak speeds."""

from __future__ import annotations

from bench.lib.machine import facts, peak_speeds
from bench.lib.processes import System
from bench.lib.sections import Metric, Section
from bench.single.plan import Plan
from dslide.util.units import counted


def section(plan: Plan) -> Section:
    """Facts, and peaks measured in every round."""
    return Section(
        "Machine",
        "\n".join(f"- {name}: {value}" for name, value in facts().items())
        + "\n\nThe best of short trials in each round. A multiply-add of 32-bit floats counts as two operations, a "
        "copy as bytes read plus bytes written.",
        [
            System(counted(threads, "thread"), f"{__name__}:measure", {"threads": threads}, limit=60)
            for threads in sorted({1, plan.threads})
        ],
        [Metric("gflops", "GFLOP/s"), Metric("copy_gigabytes", "copy, GB/s", ",.1f")],
    )


def measure(threads: int, seed: int) -> dict[str, float]:
    """The peak speeds of so many threads."""
    return vars(peak_speeds(threads))
