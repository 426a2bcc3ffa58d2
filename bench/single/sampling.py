"""The cost of sampling in accuracy: the same network and epochs, with sampled and with all outputs."""

from __future__ import annotations

from bench.lib.processes import System
from bench.lib.sections import Comparison, Section
from bench.lib.training import BF16, PRECISION, RANDOM, SECONDS
from bench.lib.workload import BATCH, HIDDEN, RATE, make_data
from bench.single.plan import Plan

FIT = "bench.lib.training:fit"
FASTER = 2  # times the learning rate, in a second trial: sampled training updates fewer rows and benefits from more


def section(plan: Plan) -> Section:
    """P@1 at equal epochs, with another seed in each round."""
    shape = plan.accuracy
    work = {"folder": str(make_data(plan.data, shape)), "threads": plan.threads, "epochs": plan.epochs}
    defaults = System("dslide, default sampling", FIT, work)
    random = System("dslide, 4,096 random negatives", FIT, work | RANDOM)
    rounded = [System(f"dslide, default sampling, {name}", FIT, work | more) for name, more in BF16.items()]
    full = System("dslide, full softmax", FIT, work | {"output": "full"})
    twice = [
        System(f"{system.name}, rate {FASTER * RATE:g}", FIT, system.arguments | {"learning_rate": FASTER * RATE})
        for system in (defaults, full)
    ]
    options = {"batch_size": BATCH, "learning_rate": RATE}
    torch = System("PyTorch, full softmax", "bench.lib.pytorch:fit_dense", work | options, needs="torch")
    return Section(
        "Accuracy at equal epochs",
        f"{shape.rows:,} synthetic rows, {shape.features:,} features, hidden {HIDDEN}, {shape.labels:,} labels, "
        f"{plan.epochs} epochs, batch {BATCH}, Adam with rate {RATE:g} (or the rate named), decaying linearly to 0; "
        f"{shape.test_rows:,} test rows. Another seed in each round. PyTorch uses its own initial weights, which are "
        "ten times as large as dslide's in the first layer, and no initial biases, which dslide computes from label "
        "frequencies.",
        [defaults, random, *rounded, full, *twice, torch],
        [PRECISION, SECONDS],
        [
            *(
                Comparison(sampled, whole, PRECISION, "difference")
                for whole in (full, torch)
                for sampled in (defaults, random, *rounded)
            ),
            *(Comparison(twice[0], whole, PRECISION, "difference") for whole in (full, twice[1])),
            Comparison(full, torch, PRECISION, "difference"),
            *(Comparison(whole, defaults, SECONDS) for whole in (full, torch)),
        ],
    )
