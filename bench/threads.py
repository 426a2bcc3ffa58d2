"""How much faster training is on all threads than on one."""

from __future__ import annotations

import time
from statistics import median

from dslide import Config, Trainer, _core

from .plan import Plan
from .quiet import Watch, measured
from .report import Figure, Section
from .runs import System
from .workload import BATCH, NETWORK, make_data, read_data, warm_up
from .workload import batches as cut

STEPS_IN_TURN = 8  # on one number of threads; starting threads takes a tenth of a millisecond


def train(folder: str, threads: int, seconds: float, seed: int) -> dict[str, float]:
    """One network, trained on one thread and on all by turns; milliseconds of the median step on each."""
    data = read_data(folder)
    trainer = Trainer(Config(**NETWORK, threads=threads, batch_size=BATCH, seed=seed), data.features, data.labels)
    work, done = cut(data, BATCH, seed), 0
    warm_up(trainer, work)
    watches = {count: Watch(count, measured(count).gflops) for count in (1, threads)}
    times: dict[int, list[float]] = {count: [] for count in watches}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for count, watch in watches.items():
            _core.set_threads(count)
            watch.begin()
            for _ in range(STEPS_IN_TURN):
                batch, done = work[done % len(work)], done + 1
                start = time.perf_counter()
                trainer.train_batch(batch.x, batch.y, 0)
                times[count].append(1e3 * (time.perf_counter() - start))
                watch.step_done()
    _core.set_threads(threads)
    quiet = {count: watch.undisturbed(times[count]) for count, watch in watches.items()}
    one, every = median(times[1]), median(times[threads])
    return {
        "one": one,
        "every": every,
        "ratio": one / every,
        "quiet_ratio": median(quiet[1]) / median(quiet[threads]),
        "quiet": watches[threads].share,
    }


def section(plan: Plan) -> Section:
    """One row."""
    shape = plan.speed
    work = {"folder": str(make_data(plan.data, shape)), "threads": plan.threads, "seconds": 2 * plan.seconds}
    return Section(
        "Threads",
        f"One network of {shape.labels:,} labels, default sampling, trained on 1 thread and on {plan.threads} by "
        f"turns, {STEPS_IN_TURN} steps each: milliseconds of the median step. Undisturbed steps: bench/quiet.py.",
        [System(f"dslide, default sampling, 1 and {plan.threads} threads", f"{__name__}:train", work)],
        [
            Figure("one", "1 thread, ms", ".2f"),
            Figure("every", f"{plan.threads} threads, ms", ".2f"),
            Figure("ratio", "ratio", ".2f"),
            Figure("quiet_ratio", "ratio, undisturbed steps", ".2f"),
            Figure("quiet", "undisturbed steps", ".0%"),
        ],
    )
