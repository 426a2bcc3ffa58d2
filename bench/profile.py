"""Where the time of a training step goes on data of Amazon-670K's shape, against what the machine can do.

    python -m bench.profile [--steps 100] [--batch-size 256] [--threads 2] [--data FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dslide import Config, Trainer
from dslide.machine_speed import measure_speeds
from dslide.profile import Profile
from dslide.threads import available_cores

from .workload import FEATURES, HIDDEN, LABELS, WARM_UP_STEPS, Batch, batches, make_data, read_data


def profile_steps(config: Config, work: list[Batch], steps: int) -> Profile:
    """The profile of so many steps over the batches, after some that are not counted: the first of those builds the
    hash tables."""
    profile = Profile(measure_speeds(config.threads or available_cores()))
    trainer = Trainer(config, work[0].x.columns, work[0].y.columns, profile=profile)
    for i in range(WARM_UP_STEPS + steps):
        if i == WARM_UP_STEPS:
            profile.begin(trainer.comm)
            profile.steps = 0
        batch = work[i % len(work)]
        trainer.train_batch(batch.x, batch.y, 0)
    profile.end()
    return profile


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="steps to look at (default: 100)")
    parser.add_argument("--batch-size", type=int, default=256, help="rows of a batch (default: 256)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads (default: one per core)")
    parser.add_argument("--data", type=Path, default=Path("build/bench-data"), help="folder for the data")
    options = parser.parse_args()

    make_data(options.data)
    config = Config(hidden=(HIDDEN,), threads=options.threads, batch_size=options.batch_size)
    print(f"{FEATURES:,} features, {LABELS:,} labels, hidden {HIDDEN}, batches of {options.batch_size}")
    print(profile_steps(config, batches(read_data(options.data), options.batch_size), options.steps).table())


if __name__ == "__main__":
    main()
