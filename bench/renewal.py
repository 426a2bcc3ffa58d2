"""What hash tables cost: renewing all of them, and their share of a training run."""

from __future__ import annotations

import time

from dslide import Config, Trainer, phases
from dslide.machine_speed import measure_speeds
from dslide.profile import Profile

from .plan import Plan
from .report import Figure, Section
from .runs import System
from .workload import BATCH, NETWORK, make_data, read_data


def train(folder: str, threads: int, epochs: int, seed: int) -> dict[str, float]:
    """Trains with default sampling, its phases timed; then renews the tables as if every neuron had moved."""
    data = read_data(folder)
    options = NETWORK | {"batch_size": BATCH, "output": "lsh"}  # also if tiny
    config = Config(**options, threads=threads, epochs=epochs, seed=seed)
    profile = Profile(measure_speeds(threads))
    trainer = Trainer(config, data.features, data.labels, profile=profile)
    trainer.fit(data)
    shares = {name: profile.phases[name].seconds / profile.seconds for name in (phases.HITS, phases.RENEWING)}
    trainer.network.output.sampler.moved[:] = True
    start = time.perf_counter()
    trainer.network.renew_tables()
    return {
        "renew_seconds": time.perf_counter() - start,
        "training_seconds": profile.seconds,
        "asking_share": shares[phases.HITS],
        "renewing_share": shares[phases.RENEWING],
        "hashing_share": sum(shares.values()),
    }


def section(plan: Plan) -> Section:
    """One row."""
    shape = plan.speed
    work = {"folder": str(make_data(plan.data, shape)), "threads": plan.threads, "epochs": plan.table_epochs}
    return Section(
        "Hash tables",
        f"Seconds to renew the tables when all {shape.labels:,} neurons moved, and shares of the time of "
        f"{plan.table_epochs} epochs with default sampling over {shape.rows:,} rows: hashing rows and looking for "
        "hits, and renewing tables, ever more rarely, the first building of them included.",
        [System(f"dslide, default sampling, {plan.table_epochs} epochs", f"{__name__}:train", work)],
        [
            Figure("renew_seconds", "renewing all, s", ".2f"),
            Figure("training_seconds", "training, s", ".1f"),
            Figure("asking_share", "looking for hits", ".1%"),
            Figure("renewing_share", "renewing", ".1%"),
            Figure("hashing_share", "together", ".1%"),
        ],
    )
