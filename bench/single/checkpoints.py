"""The cost of checkpoints: training with and without them, Amazon-670K's shape; report.md and report.json.

    python -m bench.single.checkpoints [--rounds 3] [--seconds 60] [--every 15] [--data FOLDER] [--out FOLDER]

A checkpoint every 15 seconds makes the cost measurable; the report converts it to one checkpoint a minute.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from bench.lib.measuring import exit_code, log, measure, run_command
from bench.lib.processes import System
from bench.lib.sections import Comparison, Metric, Section
from bench.lib.training import MEMORY, SPEED
from bench.lib.workload import AMAZON, BATCH, HIDDEN, batches, make_data, read_data
from dslide import Config, Trainer
from dslide.checkpoint.run_folder import newest
from dslide.checkpoint.saved_model import SavedModel
from dslide.training.run import Checkpointing
from dslide.util.memory import peak_rss_bytes

MINUTE = 60.0


def train(folder: str, out: str, every: float, seconds: float, seed: int) -> dict[str, float]:
    """Trains with default options for so many seconds, with a checkpoint `every` so many seconds; 0: none."""
    data = read_data(folder)
    config = Config(hidden=(HIDDEN,), batch_size=BATCH, seed=seed, checkpoint_seconds=every, checkpoints_kept=1)
    trainer = Trainer(config, data.features, data.labels)
    network, config = trainer.network, trainer.config
    network.set_label_prior(data.x, data.y, same=False)

    def model() -> SavedModel:
        return SavedModel(config, network.features, network.labels, network.state(), progress=trainer.progress())

    with tempfile.TemporaryDirectory(dir=out) as run:
        work = batches(data, BATCH, seed)
        for batch in work:  # an untimed epoch: allocates memory, builds tables
            trainer.train_batch(batch.x, batch.y, 0)
        checkpoints = Checkpointing(trainer, Path(run), model, log)
        manager = checkpoints.manager
        trainer.callbacks.append(checkpoints)
        size, made, steps = 0, 0, 0
        last, begin = None, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            batch = work[steps % len(work)]
            checkpoints.on_step(trainer, trainer.train_batch(batch.x, batch.y, 0))
            steps += 1
            if manager.last is not None and manager.last != last:
                last, made = manager.last, made + 1
                size = sum(file.stat().st_size for file in last.iterdir())
        taken = time.perf_counter() - begin
        assert newest(run) == last
        manager.save()
        manager.close()
    return {
        "samples_per_second": steps * BATCH / taken,
        "checkpoints": made,
        "gigabytes": size / 1e9,
        "peak_gigabytes": peak_rss_bytes() / 1e9,
    }


def section(data: Path, out: Path, every: float, seconds: float) -> Section:
    """Without and with checkpoints."""
    shared = {"folder": str(data), "out": str(out), "seconds": seconds}
    without = System("without", f"{__name__}:train", {**shared, "every": 0.0})
    often = System(f"one every {every:g} s", f"{__name__}:train", {**shared, "every": every})
    return Section(
        "Checkpoints",
        f"Default options but hidden {HIDDEN}, {seconds:g} s a run after an untimed epoch. With one checkpoint a "
        f"minute the loss of speed is {every / MINUTE:.2g} times that of the ratio below.",
        [without, often],
        [SPEED, Metric("checkpoints", "checkpoints"), Metric("gigabytes", "GB each", ".2f"), MEMORY[0]],
        [Comparison(often, without, SPEED)],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.single.checkpoints", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a run (default: 60)")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between checkpoints (default: 15)")
    parser.add_argument("--data", type=Path, default=Path("build/bench-data"), help="folder for the data")
    parser.add_argument("--out", type=Path, default=Path("build/checkpoints"), help="folder for the report")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = make_data(options.data, AMAZON)
    made = section(data, options.out.resolve(), options.every, options.seconds)
    details = {"seconds": options.seconds, "every": options.every}
    return exit_code(measure([made], range(options.rounds), options.out, details))


if __name__ == "__main__":
    run_command(main)
