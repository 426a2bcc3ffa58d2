"""Speed-up of training on all threads over one."""

from __future__ import annotations

import time
from statistics import median

from bench.lib.machine import peak_speeds
from bench.lib.processes import System
from bench.lib.sections import Metric, Section
from bench.lib.undisturbed import StepMonitor
from bench.lib.workload import BATCH, NETWORK, batches, read_data, warm_up
from bench.single.plan import Plan
from dslide import Config, Trainer, _core

STEPS = 8  # in a row on one number of threads; starting threads takes a tenth of a millisecond


def train(folder: str, threads: int, seconds: float, seed: int) -> dict[str, float]:
    """One network, trained on one thread and on all in interleaved rounds; milliseconds of the median step on each."""
    data = read_data(folder)
    trainer = Trainer(Config(**NETWORK, threads=threads, batch_size=BATCH, seed=seed), data.features, data.labels)
    work, done = batches(data, BATCH, seed), 0
    warm_up(trainer, work)
    monitors = {count: StepMonitor(count, peak_speeds(count).gflops) for count in (1, threads)}
    times: dict[int, list[float]] = {count: [] for count in monitors}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for count, monitor in monitors.items():
            _core.set_threads(count)
            monitor.begin()
            for _ in range(STEPS):
                batch, done = work[done % len(work)], done + 1
                start = time.perf_counter()
                trainer.train_batch(batch.x, batch.y, 0)
                times[count].append(1e3 * (time.perf_counter() - start))
                monitor.step_done()
    _core.set_threads(threads)
    undisturbed = {count: median(monitor.undisturbed(times[count])) for count, monitor in monitors.items()}
    one, every = median(times[1]), median(times[threads])
    return {
        "one": one,
        "every": every,
        "ratio": one / every,
        "undisturbed_ratio": undisturbed[1] / undisturbed[threads],
        "undisturbed": monitors[threads].share,
    }


def section(plan: Plan) -> Section:
    """One row."""
    shape = plan.speed
    return Section(
        "Threads",
        f"One network of {shape.labels:,} labels, default sampling, trained on 1 thread and on {plan.threads} in "
        f"interleaved rounds of {STEPS} steps: milliseconds of the median step. Undisturbed steps: "
        "bench/lib/undisturbed.py.",
        [System(f"dslide, default sampling, 1 and {plan.threads} threads", f"{__name__}:train", plan.timed_work(2))],
        [
            Metric("one", "1 thread, ms", ".2f"),
            Metric("every", f"{plan.threads} threads, ms", ".2f"),
            Metric("ratio", "ratio", ".2f"),
            Metric("undisturbed_ratio", "ratio, undisturbed steps", ".2f"),
            Metric("undisturbed", "undisturbed steps", ".0%"),
        ],
    )
