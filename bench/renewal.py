"""What hash tables cost: renewing all of them, and their share of a training run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dslide import Config, Trainer

from .plan import Plan
from .report import Figure, Section
from .runs import System
from .workload import HIDDEN, make_data, read_data


class Stopwatch:
    """Adds up the time that calls take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - start

        return call


def train(folder: str, threads: int, epochs: int, seed: int) -> dict[str, float]:
    """Trains with defaults, watching the output layer's hash tables; then renews them as if every neuron had moved."""
    data = read_data(folder)
    config = Config(hidden=(HIDDEN,), threads=threads, epochs=epochs, seed=seed, output="lsh")  # also if tiny
    trainer = Trainer(config, data.features, data.labels)
    sampler, asking, renewing = trainer.network.output.sampler, Stopwatch(), Stopwatch()
    sampler.hits, sampler.renew = asking.around(sampler.hits), renewing.around(sampler.renew)
    result = trainer.fit(data)
    in_training = renewing.seconds
    sampler.moved[:] = True
    trainer.network.renew_tables()
    return {
        "renew_seconds": renewing.seconds - in_training,
        "training_seconds": result.seconds,
        "asking_share": asking.seconds / result.seconds,
        "renewing_share": in_training / result.seconds,
        "hashing_share": (asking.seconds + in_training) / result.seconds,
    }


def section(plan: Plan) -> Section:
    """One row."""
    shape = plan.speed
    work = {"folder": str(make_data(plan.data, shape)), "threads": plan.threads, "epochs": plan.table_epochs}
    return Section(
        "Hash tables",
        f"Seconds to renew the tables when all {shape.labels:,} neurons moved, and shares of the time of "
        f"{plan.table_epochs} epochs with defaults over {shape.rows:,} rows: hashing rows and looking for hits, and "
        "renewing tables, ever more rarely, the first building of them included.",
        [System(f"dslide, defaults, {plan.table_epochs} epochs", f"{__name__}:train", work)],
        [
            Figure("renew_seconds", "renewing all, s", ".2f"),
            Figure("training_seconds", "training, s", ".1f"),
            Figure("asking_share", "looking for hits", ".1%"),
            Figure("renewing_share", "renewing", ".1%"),
            Figure("hashing_share", "together", ".1%"),
        ],
    )
