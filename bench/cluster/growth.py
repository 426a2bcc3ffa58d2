"""What sizes cost: labels, hidden neurons, rows in a batch, active outputs, and numbers on the wire. Speed, bytes and
accuracy of each, where the curves bend, and pictures; report.md, report.json and SVG files.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dslide import Config, Trainer, netlab
from dslide.config import LARGEST
from dslide.plan import plan
from dslide.sampler import sampling_sizes
from dslide.threads import available_cores
from dslide.traffic import bytes_per_step
from dslide.trainer import RenewalSchedule

from .. import network
from ..accuracy import PRECISION
from ..growth import moved
from ..measuring import measure
from ..picture import write_curves
from ..plan import ACCURACY
from ..report import Comparison, Figure, Section
from ..runs import Outcome, System
from ..throughput import ACTIVE, HALVES, MEMORY, SPEED, timed_dslide
from ..workload import AMAZON, BATCH, EPOCH_ROWS, HIDDEN, NETWORK, RATE, Batch, Shape, batches, make_data, read_data
from .knees import choice_words, failed, points, precision_words, speed_words

NODES, LINKS = 4, "100mbit"  # of the cluster on which wire formats are compared, and for which bytes are computed
BYTES = Figure("bytes_per_sample", f"bytes a sample, {NODES} nodes")
RENEWAL = Figure("renew_seconds", "renewing all, s", ".2f")
LONG = Figure("long_run", "samples/s with renewals")  # in a run of as many rows as Amazon-670K has
SENT = Figure("sent_per_sample", "bytes a sample on the wire")
STORAGES = {"float32": {}, "bf16": HALVES["bf16 storage"]}
WIRES = ("float32", "bf16", "int8")
MOST_BYTES = 14e9  # of memory that a run may take
CAUTION = (
    "Accuracy is that of synthetic rows, whose labels are easy to tell apart; docs/accuracy.md has real data. Speeds "
    "are of one machine."
)


@dataclass(frozen=True)
class Sweeps:
    """The settings that are tried."""

    speed: Shape
    accuracy: Shape
    labels: tuple[int, ...]
    hidden: tuple[int, ...]
    batches: tuple[int, ...]
    hits: tuple[int, ...]
    draws: tuple[int, ...]
    seconds: float  # for which speed is measured
    epochs: int  # of training for accuracy
    rounds: int


FULL = Sweeps(
    speed=AMAZON,
    accuracy=ACCURACY,
    labels=(10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000),
    hidden=(64, 128, 256, 512, 1024, 2048),
    batches=(128, 256, 512, 1024, 2048, 4096, 8192),
    hits=(0, 1, 2, 4, 8, 16),
    draws=(256, 512, 1024, 2048, 4096, 8192, 16_384),
    seconds=5,
    epochs=5,
    rounds=3,
)
QUICK = Sweeps(
    speed=Shape(2000, 3000, 10_000, 200),
    accuracy=Shape(2000, 1000, 10_000, 200),
    labels=(10_000, 20_000),
    hidden=(16, 32),
    batches=(128, 256),
    hits=(0, 4),
    draws=(1024, 2048),
    seconds=0.2,
    epochs=2,
    rounds=1,
)


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
    return int(failed(growth.sections, outcomes))


# ---- what runs in processes of its own -------------------------------------------------------------------------------


def speed(folder: str, threads: int, seconds: float, labels: int, seed: int, **options: Any) -> dict[str, float]:
    """Training speed on the rows, spread over so many labels, with these options: between renewals of the hash tables,
    and in a long run. And the bytes that a sample would cost on several nodes."""
    data = read_data(folder)
    config = Config(**(NETWORK | {"batch_size": BATCH, "threads": threads, "seed": seed} | options))
    work = [Batch(batch.x, moved(batch.y, labels)) for batch in batches(data, config.batch_size, seed)]
    trainer = Trainer(config.replace(renew_every=LARGEST), data.features, labels)
    found = timed_dslide(trainer, work, seconds)
    renewal = seconds_of_renewal(trainer)
    return found | {
        "renew_seconds": renewal,
        "long_run": long_run(config, found[SPEED.key], renewal),
        "bytes_per_sample": bytes_per_sample(config, labels),
    }


def seconds_of_renewal(trainer: Trainer) -> float:
    """What renewing the output layer's hash tables takes when every neuron moved; 0 if there are none."""
    sampler = trainer.network.output.sampler
    if sampler is None:
        return 0.0
    sampler.moved[:] = True
    start = time.perf_counter()
    trainer.network.renew_tables()
    return time.perf_counter() - start


def long_run(config: Config, samples_per_second: float, renewal: float) -> float:
    """Samples a second of so many epochs of Amazon-670K, renewals included, as if all neurons moved before each."""
    steps = config.epochs * EPOCH_ROWS // config.batch_size
    schedule = RenewalSchedule(config.renew_every, config.renew_growth)
    renewals = 1 + sum(schedule.due(step) for step in range(steps))  # and the first building
    samples = steps * config.batch_size
    return samples / (samples / samples_per_second + renewals * renewal)


def wire(folder: str, format: str, epochs: int, seed: int) -> dict[str, float]:
    """Training on an emulated cluster, with numbers on the wire in this format."""
    lab = f"growth{os.getpid()}"
    netlab.up(NODES, LINKS, lab)
    try:
        data = Path(folder)
        options = [f"--wire={format}", f"--seed={seed}", f"--test={data / 'test.txt'}"]
        found = network.run(data / "train.txt", options, lab, epochs)
    finally:
        netlab.down(lab)
    config = Config(**NETWORK, batch_size=network.BATCH, wire=format)
    return found | {
        "bytes_per_sample": bytes_per_sample(config, read_data(data).labels),
        "sent_per_sample": NODES * found["bytes_on_wire"] / network.BATCH,
    }


def bytes_per_sample(config: Config, labels: int) -> float:
    """What all nodes together send for a sample, by the formula: an upper bound."""
    return NODES * bytes_per_step(config, labels, NODES) / config.batch_size


# ---- the sweeps ------------------------------------------------------------------------------------------------------


class Growth:
    """The systems of each sweep by their settings, the sections that they make, and what follows from them."""

    def __init__(self, sweeps: Sweeps, data: Path, threads: int) -> None:
        self.sweeps, self.threads = sweeps, threads
        self._speed_data, self._accuracy_data = (make_data(data, s) for s in (sweeps.speed, sweeps.accuracy))
        self.labels = {
            storage: {
                at: self._speed(f"{at:,} labels, {storage}", at, **STORAGES[storage])
                for at in sweeps.labels
                if storage in _stored({}, self._spread(at))
            }
            for storage in STORAGES
        }
        self.hidden = {
            storage: {
                at: self._speed(f"hidden {at:,}, {storage}", hidden=at, **STORAGES[storage])
                for at in sweeps.hidden
                if storage in _stored({"hidden": at}, sweeps.speed)
            }
            for storage in STORAGES
        }
        self.batches = {at: self._speed(f"batch {at:,}", batch_size=at) for at in sweeps.batches}
        self.hits = {at: self._speed(f"{at} hits", **_hits(at)) for at in sweeps.hits}
        self.draws = {at: self._speed(f"{at:,} draws", draws=at) for at in sweeps.draws}
        self.batch_accuracy = {at: self._accuracy(f"batch {at:,}", batch_size=at) for at in sweeps.batches}
        self.scaled_accuracy = {at: self._scaled(at) for at in sweeps.batches if at > BATCH}
        self.hits_accuracy = {at: self._accuracy(f"{at} hits", **_hits(at)) for at in sweeps.hits}
        self.draws_accuracy = {at: self._accuracy(f"{at:,} draws", draws=at) for at in sweeps.draws}
        self.wires = [self._wire(format) for format in WIRES]
        self.sections = self._sections()

    def conclude(self, outcomes: Mapping[System, Outcome]) -> str:
        """Where the knees are, and what the defaults have of the best."""

        def speeds(systems: Mapping[int, System]) -> list[tuple[float, float]]:
            return points(systems, outcomes, LONG)

        def precisions(systems: Mapping[int, System]) -> list[tuple[float, float]]:
            return points(systems, outcomes, PRECISION)

        hits, draws = sampling_sizes(Config(**NETWORK), self.sweeps.speed.labels)
        batch_precisions = precisions(self.batch_accuracy)
        lines = [
            *(speed_words(f"labels, {name}", speeds(systems)) for name, systems in self.labels.items()),
            *(speed_words(f"hidden neurons, {name}", speeds(systems)) for name, systems in self.hidden.items()),
            speed_words("rows in a batch", speeds(self.batches)),
            precision_words(f"rows in a batch, rate {RATE:g}", batch_precisions),
            precision_words("rows in a batch, rate growing", precisions(self._growing())),
            choice_words("rows in a batch", speeds(self.batches), batch_precisions, BATCH),
            speed_words("hits a row", speeds(self.hits)),
            choice_words("hits a row", speeds(self.hits), precisions(self.hits_accuracy), hits),
            speed_words("draws", speeds(self.draws)),
            choice_words("draws", speeds(self.draws), precisions(self.draws_accuracy), draws),
        ]
        return "\n".join(["## Knees", "", CAUTION, "", *lines])

    def draw(self, out: Path, outcomes: Mapping[System, Outcome]) -> None:
        """Pictures of the sweeps, as SVG files."""
        rates = {f"rate {RATE:g}": self.batch_accuracy, "rate growing": self._growing()}
        pictures = [
            ("labels", LONG, self.labels, "labels"),
            ("hidden", LONG, self.hidden, "hidden neurons"),
            ("batch", LONG, {"dslide": self.batches}, "rows in a batch"),
            ("hits", LONG, {"dslide": self.hits}, "hits a row"),
            ("draws", LONG, {"dslide": self.draws}, "random outputs of a batch"),
            ("batch-accuracy", PRECISION, rates, "rows in a batch"),
            ("hits-accuracy", PRECISION, {"dslide": self.hits_accuracy}, "hits a row"),
            ("draws-accuracy", PRECISION, {"dslide": self.draws_accuracy}, "random outputs of a batch"),
        ]
        for name, figure, lines, x_name in pictures:
            curves = {line: points(systems, outcomes, figure) for line, systems in lines.items()}
            what = "Training speed" if figure is LONG else f"Accuracy after {self.sweeps.epochs} epochs"
            write_curves(
                out / f"{name}.svg",
                f"{what} over {x_name}",
                "samples/s" if figure is LONG else figure.heading,
                curves,
                x_name,
                log_x="hits" not in name,  # they begin with 0
                from_zero=figure is LONG,
            )

    def _growing(self) -> dict[int, System]:
        """With the growing rate, which is the fixed one up to the default batch."""
        return {at: self.scaled_accuracy.get(at, system) for at, system in self.batch_accuracy.items()}

    def _speed(self, name: str, labels: int = 0, **options: Any) -> System:
        shape = self._spread(labels or self.sweeps.speed.labels)
        work = {"folder": str(self._speed_data), "threads": self.threads, "seconds": self.sweeps.seconds}
        arguments = work | {"labels": shape.labels} | options
        return System(name, f"{__name__}:speed", arguments, least_bytes=_least(options, shape))

    def _spread(self, labels: int) -> Shape:
        return replace(self.sweeps.speed, labels=labels)

    def _accuracy(self, name: str, **options: Any) -> System:
        work = {"folder": str(self._accuracy_data), "threads": self.threads, "epochs": self.sweeps.epochs}
        return System(name, "bench.accuracy:learn", work | options)

    def _scaled(self, batch: int) -> System:
        rate = RATE * math.sqrt(batch / BATCH)
        return self._accuracy(f"batch {batch:,}, rate {rate:.3f}", batch_size=batch, learning_rate=rate)

    def _wire(self, format: str) -> System:
        arguments = {"folder": str(self._accuracy_data), "format": format, "epochs": self.sweeps.epochs}
        return System(f"{format} on the wire", f"{__name__}:wire", arguments)

    def _sections(self) -> list[Section]:
        sweeps, shape, small = self.sweeps, self.sweeps.speed, self.sweeps.accuracy
        timed = f"{sweeps.seconds:g} s a run between renewals of hash tables, {self.threads} threads"
        base = f"{shape.features:,} features, {shape.labels:,} labels, hidden {HIDDEN}, batch {BATCH}, default sampling"
        learned = (
            f"{small.rows:,} synthetic rows, {small.features:,} features, {small.labels:,} labels, hidden {HIDDEN}, "
            f"{sweeps.epochs} epochs, Adam falling to 0 in a straight line, from {RATE:g} where nothing else is said; "
            "a seed for each round."
        )
        formula = (
            f"Bytes are what {NODES} nodes together would send for a sample, by the formula. Speed with renewals is "
            f"computed for {Config.epochs} epochs of {EPOCH_ROWS:,} rows, as if all neurons moved before each."
        )
        stored = (
            f"Weights and moments are stored as float32 where that takes at most {MOST_BYTES / 1e9:.0f} GB, and those "
            "of larger networks as bf16 too."
        )
        cost = [SPEED, RENEWAL, LONG, ACTIVE, BYTES, MEMORY[0]]
        return [
            Section(
                "Labels",
                f"The same rows, labels spread over more outputs: {base}; {timed}. {formula} {stored}",
                [system for systems in self.labels.values() for system in systems.values()],
                cost,
            ),
            Section(
                "Hidden neurons",
                f"{base}, but for the hidden layer; {timed}. {formula} {stored}",
                [system for systems in self.hidden.values() for system in systems.values()],
                cost,
            ),
            Section("Batch size", f"{base}, but for the batch; {timed}. {formula}", [*self.batches.values()], cost),
            Section(
                "Batch size, accuracy",
                f"After equal samples. {learned} Rates that grow do so with the root of the batch.",
                [*self.batch_accuracy.values(), *self.scaled_accuracy.values()],
                [PRECISION],
            ),
            Section(
                "Hash hits",
                f"Outputs that each row adds through hash tables; 0: only random ones. {base}; {timed}. {formula}",
                [*self.hits.values()],
                cost,
            ),
            Section("Hash hits, accuracy", learned, [*self.hits_accuracy.values()], [PRECISION]),
            Section(
                "Random outputs",
                f"Added to those of the hash tables, for the whole batch. {base}; {timed}. {formula}",
                [*self.draws.values()],
                cost,
            ),
            Section("Random outputs, accuracy", learned, [*self.draws_accuracy.values()], [PRECISION]),
            Section(
                "Numbers on the wire",
                f"{NODES} emulated nodes of a thread each, links of {LINKS}, batch {network.BATCH}. {learned} Speed is "
                "the median of the epochs after the first; all nodes share this machine's cores. Bytes of a sample are "
                "those sent by all nodes: on their interfaces, start of the job included, and by the formula, an upper "
                "bound.",
                self.wires,
                [SPEED, SENT, BYTES, Figure("waiting", "waiting", ".0%"), PRECISION],
                [
                    Comparison(system, self.wires[0], figure, "difference" if figure is PRECISION else "ratio")
                    for system in self.wires[1:]
                    for figure in (SPEED, SENT, PRECISION)
                ],
            ),
        ]


def _hits(hits: int) -> dict[str, Any]:
    """Options for so many hits; without any there need be no tables."""
    return {"output": "lsh", "hits": hits} if hits else {"output": "random"}


def _least(options: Mapping[str, Any], shape: Shape) -> int:
    return plan(Config(**(NETWORK | options)), shape.features, shape.labels).bytes_total


def _stored(options: Mapping[str, Any], shape: Shape) -> list[str]:
    """How a network's parameters are stored: the largest in 16 bits, larger ones in both ways, others in 32."""
    needed = _least(options, shape)
    return [name for name, wanted in (("float32", needed <= MOST_BYTES), ("bf16", needed > MOST_BYTES / 4)) if wanted]
