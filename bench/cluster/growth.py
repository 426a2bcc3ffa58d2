"""The cost of sizes: labels, hidden neurons, rows in a batch, active outputs, and wire formats. Speed, bytes and
accuracy of each, and which values are near the best; report.md, report.json and charts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.cluster.labs import trained
from bench.cluster.sweeps import describe_choice, describe_precision, describe_speed, points
from bench.lib.charts import write_chart
from bench.lib.measuring import exit_code, measure
from bench.lib.processes import Outcome, System
from bench.lib.sections import Comparison, Metric, Section
from bench.lib.training import ACTIVE, BF16, MEMORY, PRECISION, SPEED, timed_trainer
from bench.lib.workload import (
    AMAZON,
    BATCH,
    EPOCH_ROWS,
    HIDDEN,
    NETWORK,
    RATE,
    SMALL,
    TINY,
    Shape,
    make_data,
    timed_rebuild,
)  # fmt: skip
from dslide import Config
from dslide.config import LARGEST
from dslide.model.defaults import EPOCHS, resolve
from dslide.planner.memory import plan
from dslide.planner.traffic import bytes_per_step
from dslide.training.schedules import RebuildSchedule
from dslide.util.threads import available_cores

NODES, RATE_OF_LINKS = 4, "100mbit"  # of the cluster for wire formats and bytes
BYTES = Metric("bytes_per_sample", f"bytes a sample, {NODES} nodes")
REBUILD = Metric("rebuild_seconds", "full rebuild, s", ".2f")
LONG = Metric("long_run", "samples/s with rebuilds")  # in a run of as many rows as Amazon-670K has
SENT = Metric("sent_per_sample", "bytes a sample on the wire")
HITS, NEGATIVES = "hash hits of a row", "random negatives of a batch"
STORAGES = {"float32": {}, "bf16": BF16["bf16 storage"]}
WIRES = ("float32", "bf16", "int8")
MOST_BYTES = 14e9  # of memory of a run
CAUTION = (
    "Accuracy is that of synthetic rows, whose labels are easy to distinguish; docs/results/accuracy.md has real data. "
    "Speeds are those of one machine."
)


@dataclass(frozen=True)
class Sweeps:
    """The settings."""

    speed: Shape
    accuracy: Shape
    labels: tuple[int, ...]
    hidden: tuple[int, ...]
    batches: tuple[int, ...]
    hash_hits: tuple[int, ...]
    random_negatives: tuple[int, ...]
    seconds: float  # for which speed is measured
    epochs: int  # of training for accuracy
    rounds: int


FULL = Sweeps(
    speed=AMAZON, accuracy=SMALL,
    labels=(10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000),
    hidden=(64, 128, 256, 512, 1024, 2048),
    batches=(128, 256, 512, 1024, 2048, 4096, 8192),
    hash_hits=(0, 1, 2, 4, 8, 16),
    random_negatives=(256, 512, 1024, 2048, 4096, 8192, 16_384),
    seconds=5, epochs=5, rounds=3,
)  # fmt: skip
QUICK = Sweeps(
    speed=TINY, accuracy=Shape(2000, 1000, 10_000, 200), labels=(10_000, 20_000), hidden=(16, 32), batches=(128, 256),
    hash_hits=(0, 4), random_negatives=(1024, 2048), seconds=0.2, epochs=2, rounds=1,
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads (default: one per core)")


def run(options: argparse.Namespace) -> int:
    """The experiment; `options` as in bench/cluster/__main__.py."""
    sweeps = QUICK if options.quick else FULL
    growth = Growth(sweeps, options.data, options.threads)
    rounds = range(options.rounds or sweeps.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes = measure(growth.sections, rounds, options.out, {"sweeps": vars(sweeps)}, growth.conclude)
    growth.draw(options.out, outcomes)
    return exit_code(outcomes)


# ---- called in processes of their own -------------------------------------------------------------------------------


def speed(folder: str, threads: int, seconds: float, labels: int, seed: int, **options: Any) -> dict[str, float]:
    """Speed of training on the rows, mapped to so many labels, with these options: between rebuilds of hash tables, and
    in a long run. And the bytes of a sample on several nodes."""
    config = Config(**(NETWORK | {"batch_size": BATCH, "threads": threads, "seed": seed} | options))
    trainer, found = timed_trainer(folder, seconds, labels, config.replace(rebuild_every=LARGEST))
    rebuild = timed_rebuild(trainer)
    return found | {
        "rebuild_seconds": rebuild,
        "long_run": long_run(config, found[SPEED.key], rebuild),
        "bytes_per_sample": NODES * bytes_per_step(config, labels, NODES) / config.batch_size,
    }


def long_run(config: Config, samples_per_second: float, rebuild: float) -> float:
    """Samples a second in so many epochs of Amazon-670K, with rebuilds of so many seconds as if all neurons changed."""
    steps = (config.epochs or EPOCHS) * EPOCH_ROWS // config.batch_size
    schedule = RebuildSchedule(config.rebuild_every, config.rebuild_growth)
    rebuilds = 1 + sum(schedule.due(step) for step in range(steps))  # and the first build
    samples = steps * config.batch_size
    return samples / (samples / samples_per_second + rebuilds * rebuild)


def wire(folder: str, format: str, epochs: int, seed: int) -> dict[str, float]:
    """Training on an emulated cluster with this wire format."""
    found = trained(folder, NODES, RATE_OF_LINKS, epochs, seed, tested=True, wire=format)
    return found | {
        "bytes_per_sample": NODES * 1e3 * found["message_kilobytes"] / BATCH,
        "sent_per_sample": NODES * 1e3 * found["kilobytes"] / BATCH,
    }


# ---- the sweeps ------------------------------------------------------------------------------------------------------


class Growth:
    """The systems of each sweep by their settings, their sections, and the conclusions."""

    def __init__(self, sweeps: Sweeps, data: Path, threads: int) -> None:
        self.sweeps, self.threads = sweeps, threads
        self._speed_data, self._accuracy_data = (make_data(data, s) for s in (sweeps.speed, sweeps.accuracy))
        self.labels, self.hidden = self._by_storage("labels", "{:,} labels"), self._by_storage("hidden", "hidden {:,}")
        batches = {at: (f"batch {at:,}", {"batch_size": at}) for at in sweeps.batches}
        hits = {at: (f"{at} hash hits", _hash_hits(at)) for at in sweeps.hash_hits}
        negatives = {at: (f"{at:,} random negatives", {"random_negatives": at}) for at in sweeps.random_negatives}
        self.batches, self.hits, self.negatives = (
            {at: self._speed(name, **options) for at, (name, options) in settings.items()}
            for settings in (batches, hits, negatives)
        )
        self.batch_accuracy, self.hits_accuracy, self.negatives_accuracy = (
            {at: self._accuracy(name, **options) for at, (name, options) in settings.items()}
            for settings in (batches, hits, negatives)
        )
        self.scaled_accuracy = {at: self._scaled(at) for at in sweeps.batches if at > BATCH}
        self.wires = [self._wire(format) for format in WIRES]
        self.sections = self._sections()

    def conclude(self, outcomes: Mapping[System, Outcome]) -> str:
        """Which settings are near the best, and how the defaults compare."""
        speeds, precisions = (partial(points, outcomes=outcomes, metric=metric) for metric in (LONG, PRECISION))
        config = resolve(Config(**NETWORK), self.sweeps.speed.labels)
        hits, negatives = config.hits_per_row, config.random_negatives
        batch_precisions = precisions(self.batch_accuracy)
        lines = [
            *(describe_speed(f"labels, {name}", speeds(systems)) for name, systems in self.labels.items()),
            *(describe_speed(f"hidden neurons, {name}", speeds(systems)) for name, systems in self.hidden.items()),
            describe_speed("rows in a batch", speeds(self.batches)),
            describe_precision(f"rows in a batch, rate {RATE:g}", batch_precisions),
            describe_precision("rows in a batch, rate growing", precisions(self._growing())),
            describe_choice("rows in a batch", speeds(self.batches), batch_precisions, BATCH),
            describe_speed(HITS, speeds(self.hits)),
            describe_choice(HITS, speeds(self.hits), precisions(self.hits_accuracy), hits),
            describe_speed(NEGATIVES, speeds(self.negatives)),
            describe_choice(NEGATIVES, speeds(self.negatives), precisions(self.negatives_accuracy), negatives),
        ]
        return "\n".join(["## Settings near the best", "", CAUTION, "", *lines])

    def draw(self, out: Path, outcomes: Mapping[System, Outcome]) -> None:
        """Charts of the sweeps, as SVG files."""
        rates = {f"rate {RATE:g}": self.batch_accuracy, "rate growing": self._growing()}
        charts = [
            ("labels", LONG, self.labels, "labels"),
            ("hidden", LONG, self.hidden, "hidden neurons"),
            ("batch", LONG, {"dslide": self.batches}, "rows in a batch"),
            ("hash-hits", LONG, {"dslide": self.hits}, HITS),
            ("random-negatives", LONG, {"dslide": self.negatives}, NEGATIVES),
            ("batch-accuracy", PRECISION, rates, "rows in a batch"),
            ("hash-hits-accuracy", PRECISION, {"dslide": self.hits_accuracy}, HITS),
            ("random-negatives-accuracy", PRECISION, {"dslide": self.negatives_accuracy}, NEGATIVES),
        ]
        for name, metric, lines, x_name in charts:
            curves = {line: points(systems, outcomes, metric) for line, systems in lines.items()}
            what = "Training speed" if metric is LONG else f"Accuracy after {self.sweeps.epochs} epochs"
            y_name, title = "samples/s" if metric is LONG else metric.heading, f"{what} over {x_name}"
            log_x = x_name != HITS  # which begin with 0
            write_chart(out / f"{name}.svg", title, y_name, curves, x_name, log_x, zero=metric is LONG)

    def _growing(self) -> dict[int, System]:
        """The rate grows beyond the default batch."""
        return {at: self.scaled_accuracy.get(at, system) for at, system in self.batch_accuracy.items()}

    def _by_storage(self, option: str, name: str) -> dict[str, dict[int, System]]:
        """Systems of a sweep over labels or hidden neurons, by storage type."""
        found: dict[str, dict[int, System]] = {storage: {} for storage in STORAGES}
        for at in getattr(self.sweeps, option):
            given = {option: at}
            needed = ({}, replace(self.sweeps.speed, labels=at)) if option == "labels" else (given, self.sweeps.speed)
            for storage in _stored(*needed):
                found[storage][at] = self._speed(f"{name.format(at)}, {storage}", **given, **STORAGES[storage])
        return found

    def _speed(self, name: str, labels: int = 0, **options: Any) -> System:
        shape = replace(self.sweeps.speed, labels=labels or self.sweeps.speed.labels)
        work = {"folder": str(self._speed_data), "threads": self.threads, "seconds": self.sweeps.seconds}
        arguments = work | {"labels": shape.labels} | options
        return System(name, f"{__name__}:speed", arguments, least_bytes=_least(options, shape))

    def _accuracy(self, name: str, **options: Any) -> System:
        work = {"folder": str(self._accuracy_data), "threads": self.threads, "epochs": self.sweeps.epochs}
        return System(name, "bench.lib.training:fit", work | options)

    def _scaled(self, batch: int) -> System:
        rate = RATE * math.sqrt(batch / BATCH)
        return self._accuracy(f"batch {batch:,}, rate {rate:.3f}", batch_size=batch, learning_rate=rate)

    def _wire(self, format: str) -> System:
        arguments = {"folder": str(self._accuracy_data), "format": format, "epochs": self.sweeps.epochs}
        return System(f"{format} on the wire", f"{__name__}:wire", arguments)

    def _sections(self) -> list[Section]:
        sweeps, shape, small = self.sweeps, self.sweeps.speed, self.sweeps.accuracy
        timed = f"{sweeps.seconds:g} s a run between rebuilds of hash tables, {self.threads} threads"
        base = f"{shape.features:,} features, {shape.labels:,} labels, hidden {HIDDEN}, batch {BATCH}, default sampling"
        learned = (
            f"{small.rows:,} synthetic rows, {small.features:,} features, {small.labels:,} labels, hidden {HIDDEN}, "
            f"{sweeps.epochs} epochs, Adam with a rate that decays linearly from {RATE:g}, or the rate named, to 0; "
            "another seed in each round."
        )
        formula = (
            f"Bytes are those of a sample on {NODES} nodes together, by the formula. Speed with rebuilds is computed "
            f"for {Config.epochs} epochs of {EPOCH_ROWS:,} rows, as if all neurons changed before each rebuild."
        )
        stored = (
            f"Weights and moments are stored as float32 if that takes at most {MOST_BYTES / 1e9:.0f} GB, and as bf16 "
            "in larger networks."
        )
        cost = [SPEED, REBUILD, LONG, ACTIVE, BYTES, MEMORY[0]]
        return [
            Section(
                "Labels",
                f"The same rows, labels mapped to more outputs: {base}; {timed}. {formula} {stored}",
                [system for systems in self.labels.values() for system in systems.values()],
                cost,
            ),
            Section(
                "Hidden neurons",
                f"{base}, except the hidden layer; {timed}. {formula} {stored}",
                [system for systems in self.hidden.values() for system in systems.values()],
                cost,
            ),
            Section("Batch size", f"{base}, except the batch; {timed}. {formula}", [*self.batches.values()], cost),
            Section(
                "Batch size, accuracy",
                f"After equal samples. {learned} Growing rates are proportional to the square root of the batch.",
                [*self.batch_accuracy.values(), *self.scaled_accuracy.values()],
                [PRECISION],
            ),
            Section(
                "Hash hits",
                f"Outputs that a row retrieves from hash tables; 0: only random negatives. {base}; {timed}. {formula}",
                [*self.hits.values()],
                cost,
            ),
            Section("Hash hits, accuracy", learned, [*self.hits_accuracy.values()], [PRECISION]),
            Section(
                "Random negatives",
                f"Of the whole batch, added to the hash hits. {base}; {timed}. {formula}",
                [*self.negatives.values()],
                cost,
            ),
            Section("Random negatives, accuracy", learned, [*self.negatives_accuracy.values()], [PRECISION]),
            Section(
                "Wire formats",
                f"{NODES} emulated nodes of a thread each, links of {RATE_OF_LINKS}, batch {BATCH}. {learned} Speed is "
                "the median of the epochs after the first; all nodes share this machine's cores. Bytes of a sample are "
                "those sent by all nodes: on their interfaces, start of the job included, and by the formula, an upper "
                "bound.",
                self.wires,
                [SPEED, SENT, BYTES, Metric("waiting", "waiting", ".0%"), PRECISION],
                [
                    Comparison(system, self.wires[0], metric, "difference" if metric is PRECISION else "ratio")
                    for system in self.wires[1:]
                    for metric in (SPEED, SENT, PRECISION)
                ],
            ),
        ]


def _hash_hits(hits: int) -> dict[str, Any]:
    """Options for so many hash hits; 0 needs no tables."""
    return {"output": "lsh", "hash_hits": hits} if hits else {"output": "random"}


def _least(options: Mapping[str, Any], shape: Shape) -> int:
    return plan(Config(**(NETWORK | options)), shape.features, shape.labels).bytes_total


def _stored(options: Mapping[str, Any], shape: Shape) -> list[str]:
    """Storage types to measure: bf16 for the largest networks, both for large ones, float32 for others."""
    needed = _least(options, shape)
    return [name for name, wanted in (("float32", needed <= MOST_BYTES), ("bf16", needed > MOST_BYTES / 4)) if wanted]
