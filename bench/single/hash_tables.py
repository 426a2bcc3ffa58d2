"""The cost of hash tables: a full rebuild, and the share of a training run."""

from __future__ import annotations

from bench.lib.processes import System
from bench.lib.sections import Metric, Section
from bench.lib.workload import BATCH, NETWORK, make_data, read_data, timed_rebuild
from bench.single.plan import Plan
from dslide import Config, Trainer
from dslide.training import phases
from dslide.training.profiler import Profile
from dslide.util.threads import measure_speeds


def train(folder: str, threads: int, epochs: int, seed: int) -> dict[str, float]:
    """Trains with default sampling and times its phases; then rebuilds the tables as if every neuron had changed."""
    data = read_data(folder)
    options = NETWORK | {"batch_size": BATCH, "output": "lsh"}  # also if the network is tiny
    config = Config(**options, threads=threads, epochs=epochs, seed=seed)
    profile = Profile(measure_speeds(threads))
    trainer = Trainer(config, data.features, data.labels, profile=profile)
    trainer.fit(data)
    shares = {name: profile.phases[name].seconds / profile.seconds for name in (phases.HASH_LOOKUP, phases.REBUILDING)}
    return {
        "rebuild_seconds": timed_rebuild(trainer),
        "training_seconds": profile.seconds,
        "lookup_share": shares[phases.HASH_LOOKUP],
        "rebuild_share": shares[phases.REBUILDING],
        "hashing_share": sum(shares.values()),
    }


def section(plan: Plan) -> Section:
    """One row."""
    shape = plan.speed
    work = {"folder": str(make_data(plan.data, shape)), "threads": plan.threads, "epochs": plan.table_epochs}
    return Section(
        "Hash tables",
        f"Seconds to rebuild the tables when all {shape.labels:,} neurons have changed, and shares of the time of "
        f"{plan.table_epochs} epochs with default sampling over {shape.rows:,} rows: hashing rows and looking them up, "
        "and rebuilds at growing intervals, the first build included.",
        [System(f"dslide, default sampling, {plan.table_epochs} epochs", f"{__name__}:train", work)],
        [
            Metric("rebuild_seconds", "full rebuild, s", ".2f"),
            Metric("training_seconds", "training, s", ".1f"),
            Metric("lookup_share", "look-up", ".1%"),
            Metric("rebuild_share", "rebuilds", ".1%"),
            Metric("hashing_share", "total", ".1%"),
        ],
    )
