"""Training speed as the output layer grows while active sets stay the same."""

from __future__ import annotations

from bench.lib.processes import System
from bench.lib.sections import Comparison, Section
from bench.lib.training import ACTIVE, MEMORY, RANDOM, SPEED
from bench.lib.workload import BATCH, HIDDEN
from bench.single.plan import Plan


def section(plan: Plan) -> Section:
    """A row for each number of labels."""
    systems = []
    for labels in plan.growth:
        arguments = plan.timed_work() | {"batch_size": BATCH, "labels": labels} | RANDOM
        state = 12 * HIDDEN * (labels + plan.speed.features)  # weights and two moments
        least = state * 4 // 3
        systems.append(System(f"{labels:,} labels", "bench.lib.training:train", arguments, least_bytes=least))
    return Section(
        "Growth",
        f"The same rows with their labels mapped to more outputs: {plan.speed.features:,} features, hidden {HIDDEN}, "
        f"batch {BATCH}; active are the labels of the batch and 4,096 random negatives.",
        systems,
        [SPEED, ACTIVE, *MEMORY[:2]],
        [Comparison(larger, systems[0], SPEED) for larger in systems[1:]],
    )
