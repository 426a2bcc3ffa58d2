"""What sampling costs in accuracy: the same network and epochs, with sampled and with all outputs."""

from __future__ import annotations

from typing import Any

from dslide import Config, Trainer
from dslide.metrics import Evaluation

from .plan import Plan
from .report import Comparison, Figure, Section
from .runs import System
from .throughput import HALVES, RANDOM
from .workload import BATCH, HIDDEN, NETWORK, RATE, make_data, read_data

PRECISION = Figure("p_at_1", "P@1", ".3f")
SECONDS = Figure("seconds", "seconds", ",.1f")
FASTER = 2  # times the learning rate, in a second trial: sampled training, which steps fewer rows, wants more


def learn(folder: str, threads: int, epochs: int, seed: int, **options: Any) -> dict[str, float]:
    """Trains dslide with the options given; seconds, and P@1 on test rows."""
    train, test = read_data(folder), read_data(folder, "test")
    fixed = NETWORK | {"threads": threads, "batch_size": BATCH, "epochs": epochs, "seed": seed}
    config = Config(**(fixed | options))
    trainer = Trainer(config, train.features, train.labels)
    result, evaluation = trainer.fit(train), Evaluation(ks=(1,))
    ids, _ = trainer.network.predict_topk(test.x, 1)
    evaluation.update(ids, test.y)
    return {"p_at_1": evaluation.result()["p_at_1"], "seconds": result.seconds}


def section(plan: Plan) -> Section:
    """P@1 at equal epochs, each round with a seed of its own."""
    shape = plan.accuracy
    work = {"folder": str(make_data(plan.data, shape)), "threads": plan.threads, "epochs": plan.epochs}
    defaults = System("dslide, default sampling", f"{__name__}:learn", work)
    random = System("dslide, 4,096 random", f"{__name__}:learn", work | RANDOM)
    halves = [
        System(f"dslide, default sampling, {name}", f"{__name__}:learn", work | more) for name, more in HALVES.items()
    ]
    full = System("dslide, full softmax", f"{__name__}:learn", work | {"output": "full"})
    faster = {"learning_rate": FASTER * RATE}
    twice = [
        System(f"{system.name}, rate {FASTER * RATE:g}", f"{__name__}:learn", system.arguments | faster)
        for system in (defaults, full)
    ]
    options = {"batch_size": BATCH, "learning_rate": RATE}
    torch = System("PyTorch, full softmax", "bench.peers:learn_dense", work | options, needs="torch")
    return Section(
        "Accuracy at equal epochs",
        f"{shape.rows:,} synthetic rows, {shape.features:,} features, hidden {HIDDEN}, {shape.labels:,} labels, "
        f"{plan.epochs} epochs, batch {BATCH}, Adam at {RATE:g} (or the rate named), falling to 0 in a straight line; "
        f"{shape.test_rows:,} test rows. A seed for each round. PyTorch begins with its own initial weights, in "
        "the first layer ten times as large as dslide's, and without dslide's first biases, which follow from the "
        "labels' frequencies.",
        [defaults, random, *halves, full, *twice, torch],
        [PRECISION, SECONDS],
        [
            *(
                Comparison(sampled, whole, PRECISION, "difference")
                for whole in (full, torch)
                for sampled in (defaults, random, *halves)
            ),
            *(Comparison(twice[0], whole, PRECISION, "difference") for whole in (full, twice[1])),
            Comparison(full, torch, PRECISION, "difference"),
            *(Comparison(whole, defaults, SECONDS) for whole in (full, torch)),
        ],
    )
