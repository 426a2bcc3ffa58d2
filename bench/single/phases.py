"""The time of a training step by phase, against the peak speeds of the machine."""

from __future__ import annotations

import time
from typing import Any

from bench.lib.machine import best_of, peak_speeds
from bench.lib.processes import System
from bench.lib.sections import Metric, Section
from bench.lib.training import RANDOM
from bench.lib.undisturbed import StepMonitor
from bench.lib.workload import NETWORK, WARM_UP_STEPS, batches, read_data, warm_up
from bench.single.plan import Plan
from dslide import Config, Trainer
from dslide.training import phases
from dslide.training.profiler import Phase, Profile
from dslide.util.threads import Speeds

SHOWN = {
    phases.HIDDEN_FORWARD: "hidden forward",
    phases.HASH_LOOKUP: "hash look-up",
    phases.ACTIVE: "active sets",
    phases.LABEL_PRIOR: "label prior",
    phases.FIRST_PASS: "output, 1st pass",
    phases.SECOND_PASS: "output, 2nd pass",
    phases.HIDDEN_BACKWARD: "hidden backward",
    phases.REBUILDING: "table rebuild",
    phases.REST: "rest",
}


def train(folder: str, threads: int, seconds: float, batch_size: int, seed: int, **options: Any) -> dict[str, float]:
    """Milliseconds of an undisturbed step by phase; the speed of the output passes relative to peak multiply-adds, and
    that of the hidden layer relative to copying, both measured in the same process."""
    data = read_data(folder)
    config = Config(**NETWORK | options, threads=threads, batch_size=batch_size, seed=seed)
    speeds = peak_speeds(threads)
    timed = Profile(speeds)
    trainer = Trainer(config, data.features, data.labels, profile=timed)
    if config.prior_labels:
        trainer.network.set_label_prior(data.x, data.y, same=False)
    work = batches(data, batch_size, seed)
    warm_up(trainer, work)
    monitor, steps, end = StepMonitor(threads, speeds.gflops), [], time.perf_counter() + seconds
    monitor.begin()
    while time.perf_counter() < end:
        batch = work[(WARM_UP_STEPS + len(steps)) % len(work)]
        timed.phases = {name: Phase() for name in phases.ALL}
        timed.begin(trainer.comm)
        trainer.train_batch(batch.x, batch.y, 0)
        timed.end()
        monitor.step_done()
        steps.append(timed.phases)
    speeds = best_of([speeds, peak_speeds(threads, least_gflops=monitor.best)])
    profile = total(monitor.undisturbed(steps), speeds)
    rows, gflops = profile.figures(), output_gflops(profile)
    milliseconds = {heading: rows[name]["ms_per_step"] if name in rows else 0.0 for name, heading in SHOWN.items()}
    return milliseconds | {
        "step": rows["all"]["ms_per_step"],
        "undisturbed": monitor.share,
        "output_gflops": gflops,
        "output_share": gflops / speeds.gflops,
        "output_share_all": output_gflops(total(steps, speeds)) / speeds.gflops,
        "forward_share": rows[phases.HIDDEN_FORWARD]["share_of_copying"],
        "backward_share": rows[phases.HIDDEN_BACKWARD]["share_of_copying"],
    }


def output_gflops(profile: Profile) -> float:
    """Speed of both passes over the output layer, in 10^9 operations a second."""
    passes = [profile.phases[name] for name in (phases.FIRST_PASS, phases.SECOND_PASS)]
    return sum(phase.flops for phase in passes) / sum(phase.seconds for phase in passes) / 1e9


def total(steps: list[dict[str, Phase]], speeds: Speeds) -> Profile:
    """The profile of several steps."""
    profile = Profile(speeds)
    profile.steps = len(steps)
    for name, whole in profile.phases.items():
        for part in (step[name] for step in steps):
            whole.calls, whole.seconds = whole.calls + part.calls, whole.seconds + part.seconds
            whole.flops, whole.bytes = whole.flops + part.flops, whole.bytes + part.bytes
            whole.known = whole.known and part.known
    return profile


def section(plan: Plan) -> Section:
    """A row for each configuration."""
    work = plan.timed_work(2)

    def system(name: str, batch_size: int, **options: Any) -> System:
        return System(name, f"{__name__}:train", work | {"batch_size": batch_size} | options)

    return Section(
        "Phases of a step",
        "Milliseconds of an undisturbed training step by phase (bench/lib/undisturbed.py). The two passes of the "
        "output layer, gathering and updating its rows included, are compared with peak multiply-adds; the two phases "
        "of the hidden layer, which are memory-bound, with copying. Both peaks are measured in the same process, "
        "before and after. `dslide train --profile` shows the same for all steps.",
        [
            system("default sampling, batch 256", 256),
            system("64 prior labels, batch 256", 256, prior_labels=64),
            *(system(f"4,096 random negatives, batch {size:,}", size, **RANDOM) for size in (256, 1024)),
            system("4,096 random negatives, batch 256, bf16 moments", 256, moments="bf16", **RANDOM),
        ],
        [
            *(Metric(heading, heading, ".2f") for heading in (*SHOWN.values(), "step")),
            Metric("undisturbed", "undisturbed steps", ".0%"),
            Metric("output_gflops", "output, GFLOP/s", ".0f"),
            Metric("output_share", "of peak", ".0%"),
            Metric("output_share_all", "of peak, all steps", ".0%"),
            Metric("forward_share", "hidden forward, of copying", ".0%"),
            Metric("backward_share", "hidden backward, of copying", ".0%"),
        ],
    )
