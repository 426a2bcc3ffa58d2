"""Where the time of a training step goes, and how near its phases come to what the machine can do."""

from __future__ import annotations

import time
from typing import Any

from dslide import Config, Trainer, phases
from dslide.machine_speed import Speeds
from dslide.profile import Phase, Profile

from .plan import Plan
from .quiet import Watch, best_of, measured
from .report import Figure, Section
from .runs import System
from .throughput import RANDOM
from .workload import NETWORK, WARM_UP_STEPS, make_data, read_data, warm_up
from .workload import batches as cut

SHOWN = {
    phases.HIDDEN_FORWARD: "hidden forward",
    phases.HITS: "hash hits",
    phases.ACTIVE: "active sets",
    phases.LINKS: "links",
    phases.FIRST_PASS: "output, 1st pass",
    phases.SECOND_PASS: "output, 2nd pass",
    phases.HIDDEN_BACKWARD: "hidden backward",
    phases.RENEWING: "renewing tables",
    phases.REST: "the rest",
}


def train(folder: str, threads: int, seconds: float, batch_size: int, seed: int, **options: Any) -> dict[str, float]:
    """Milliseconds of an undisturbed step by phase; the output passes' share of the machine's arithmetic, and that of
    the hidden layer in its copying, both measured in the same process."""
    data = read_data(folder)
    config = Config(**NETWORK | options, threads=threads, batch_size=batch_size, seed=seed)
    speeds = measured(threads)
    timed = Profile(speeds)
    trainer = Trainer(config, data.features, data.labels, profile=timed)
    if config.links:
        trainer.network.set_links(data.x, data.y, same=False)
    work = cut(data, batch_size, seed)
    warm_up(trainer, work)
    watch, steps, end = Watch(threads, speeds.gflops), [], time.perf_counter() + seconds
    watch.begin()
    while time.perf_counter() < end:
        batch = work[(WARM_UP_STEPS + len(steps)) % len(work)]
        timed.phases = {name: Phase() for name in phases.ALL}
        timed.begin(trainer.comm)
        trainer.train_batch(batch.x, batch.y, 0)
        timed.end()
        watch.step_done()
        steps.append(timed.phases)
    speeds = best_of([speeds, measured(threads, least=watch.best)])
    profile = joined(watch.undisturbed(steps), speeds)
    rows, gflops = profile.figures(), output_gflops(profile)
    figures = {heading: rows[name]["ms_per_step"] if name in rows else 0.0 for name, heading in SHOWN.items()}
    return figures | {
        "step": rows["all"]["ms_per_step"],
        "undisturbed": watch.share,
        "output_gflops": gflops,
        "output_share": gflops / speeds.gflops,
        "output_share_all": output_gflops(joined(steps, speeds)) / speeds.gflops,
        "forward_share": rows[phases.HIDDEN_FORWARD]["share_of_copying"],
        "backward_share": rows[phases.HIDDEN_BACKWARD]["share_of_copying"],
    }


def output_gflops(profile: Profile) -> float:
    """Speed of both passes over the output layer, in 10^9 operations a second."""
    passes = [profile.phases[name] for name in (phases.FIRST_PASS, phases.SECOND_PASS)]
    return sum(phase.flops for phase in passes) / sum(phase.seconds for phase in passes) / 1e9


def joined(steps: list[dict[str, Phase]], speeds: Speeds) -> Profile:
    """The profile of all of some steps."""
    profile = Profile(speeds)
    profile.steps = len(steps)
    for name, whole in profile.phases.items():
        for part in (step[name] for step in steps):
            whole.calls, whole.seconds = whole.calls + part.calls, whole.seconds + part.seconds
            whole.flops, whole.bytes = whole.flops + part.flops, whole.bytes + part.bytes
            whole.known = whole.known and part.known
    return profile


def section(plan: Plan) -> Section:
    """A row for each way of training."""
    work = {"folder": str(make_data(plan.data, plan.speed)), "threads": plan.threads, "seconds": 2 * plan.seconds}

    def system(name: str, batch_size: int, **options: Any) -> System:
        return System(name, f"{__name__}:train", work | {"batch_size": batch_size} | options)

    return Section(
        "Where the time goes",
        "Milliseconds of a training step by phase; steps that were disturbed do not count (how that is told: "
        "bench/quiet.py). The output's two passes, with gathering and stepping its rows, are held against the peak of "
        "multiply-adds; the hidden layer's two phases, which are bound by memory, against copying; both were measured "
        "in the same process, before and after. `dslide train --profile` shows the same for all steps.",
        [
            system("default sampling, batch 256", 256),
            system("64 links, batch 256", 256, links=64),
            *(system(f"4,096 random, batch {size:,}", size, **RANDOM) for size in (256, 1024)),
            system("4,096 random, batch 256, bf16 moments", 256, moments="bf16", **RANDOM),
        ],
        [
            *(Figure(heading, heading, ".2f") for heading in (*SHOWN.values(), "step")),
            Figure("undisturbed", "undisturbed steps", ".0%"),
            Figure("output_gflops", "output, GFLOP/s", ".0f"),
            Figure("output_share", "of peak", ".0%"),
            Figure("output_share_all", "of peak, all steps", ".0%"),
            Figure("forward_share", "hidden forward, of copying", ".0%"),
            Figure("backward_share", "hidden backward, of copying", ".0%"),
        ],
    )
