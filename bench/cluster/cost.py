"""Time and price of a million samples, derived from the speed measured here, assumed prices, published times of SLIDE
and TensorFlow on a V100, and peak speeds of GPUs; report.md and report.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from bench.lib.measuring import exit_code, measure
from bench.lib.processes import Outcome, System
from bench.lib.sections import Section, Summary, summary
from bench.lib.tables import markdown_table
from bench.lib.training import ACTIVE, BF16, MEMORY, SPEED
from bench.lib.workload import AMAZON, BATCH, EPOCH_ROWS, HIDDEN, TINY, Shape, make_data
from dslide.util.threads import available_cores

MILLION, HOUR = 1e6, 3600.0

# Prices in dollars an hour, all of them assumed in November 2026. Replace them by your own.
VCPU_HOUR, SPOT_VCPU_HOUR = 0.0425, 0.0125  # a quarter of a VM with 4 vCPUs and 16 GB, at $0.17 and $0.05
GPU_HOUR = {"V100": 3.06, "A100": 4.10}  # a VM with one


@dataclass(frozen=True)
class Published:
    """A whole training run whose hours, but not samples, are published."""

    what: str
    hours: float
    dollars_an_hour: float
    source: str


PUBLISHED = (
    Published("TensorFlow 1.12, full softmax, one V100", 5.5, GPU_HOUR["V100"],
              "arXiv 1903.03129, section 5, main results: Amazon-670K, hidden 128, batch 256, until convergence"),
    Published("SLIDE on 44 cores (2 x Xeon E5-2699A v4)", 2.0, 88 * VCPU_HOUR,
              "the same; priced as 88 vCPUs, two a core"),
    Published("TensorFlow, one V100, from the abstract", 3.5, GPU_HOUR["V100"],
              "arXiv 1903.03129, abstract: any accuracy level, data not named"),
    Published("SLIDE on 44 cores, from the abstract", 1.0, 88 * VCPU_HOUR, "the same; priced as above"),
)  # fmt: skip


@dataclass(frozen=True)
class Peak:
    """Peak speeds of a GPU."""

    gpu: str
    flops: float  # a second
    bytes: float  # of memory, read or written in a second; infinite if only the other bound is used
    source: str


PEAKS = (
    Peak("V100", 15.7e12, float("inf"), "float32 at 15.7 TFLOP/s, a secondary source; its memory is not counted"),
    Peak("A100", 156e12, 2.039e12, "TF32 at 156 TFLOP/s, 2,039 GB/s, NVIDIA's data sheet, quoted from others"),
)

EARLIER = "measured before on another machine, one or two runs: 2 vCPUs with AVX-512, batch 128"
ELSEWHERE = (
    ("SLIDE (its authors' code)", 63, EARLIER),
    ("SLIDE with Intel's AVX-512 code", 520, f"{EARLIER}; 500 to 545"),
    ("BOLT, built from source", 180, f"{EARLIER}; from 8 steps"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads (default: one per core)")


def run(options: argparse.Namespace) -> int:
    """The experiment; `options` as in bench/cluster/__main__.py."""
    shape = TINY if options.quick else AMAZON
    seconds, rounds = (0.2, 1) if options.quick else (8, 3)
    work = {
        "folder": str(make_data(options.data, shape)), "threads": options.threads, "seconds": seconds,
        "batch_size": BATCH,
    }  # fmt: skip
    systems = [
        System("dslide", "bench.lib.training:train", work),
        System("dslide, bf16", "bench.lib.training:train", work | BF16["bf16 storage"]),
    ]
    measured = Section(
        "Speed measured",
        f"{shape.features:,} features, {shape.labels:,} labels, hidden {HIDDEN}, batch {BATCH}, default sampling, "
        f"{options.threads} threads, {seconds:g} s a run.",
        systems,
        [SPEED, ACTIVE, MEMORY[0]],
    )

    def conclude(outcomes: Mapping[System, Outcome]) -> str:
        speeds = {system.name: summary(outcomes[system], SPEED) for system in systems if outcomes[system].rounds}
        return derived(speeds, options.threads)

    details = {"threads": options.threads}
    return exit_code(measure([measured], range(options.rounds or rounds), options.out, details, conclude))


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def dollars_a_million(samples_per_second: float, dollars_an_hour: float) -> float:
    return MILLION / samples_per_second / HOUR * dollars_an_hour


def most_samples_per_second(peak: Peak, shape: Shape, hidden: int, batch: int) -> float:
    """The bound of a full softmax with Adam: the output layer's multiplications, one forward and two back, and a read
    and a write of each weight and its two moments, in a step. Everything else is free."""
    operations = 6 * shape.labels * hidden * batch
    moved = 4 * 2 * 3 * hidden * (shape.labels + shape.features)
    return batch / max(operations / peak.flops, moved / peak.bytes)


def bought(dollars: float, samples_per_second: float, dollars_an_hour: float) -> float:
    """The number of samples that can be trained for this much money."""
    return dollars / dollars_an_hour * HOUR * samples_per_second


def _row(what: str, speed: float, dollars_an_hour: float, source: str) -> list[str]:
    minutes, epoch = (f"{samples / speed / 60:,.1f}" for samples in (MILLION, EPOCH_ROWS))
    dollars = f"{dollars_a_million(speed, dollars_an_hour):.4f}"
    return [what, f"{speed:,.0f}", f"{dollars_an_hour:,.3f}", minutes, dollars, epoch, source]


# ---- the report ------------------------------------------------------------------------------------------------------


def derived(measured: Mapping[str, Summary], threads: int) -> str:
    """The tables: by sample if speeds are known, by run if only hours are published."""
    here = f"measured here, {threads} vCPUs"
    rows = []
    for name, speed in measured.items():
        rows.append(_row(name, speed.median, threads * VCPU_HOUR, here))
        rows.append(_row(f"{name}, spot VM", speed.median, threads * SPOT_VCPU_HOUR, here))
    for name, samples, source in ELSEWHERE:
        rows.append(_row(name, samples, 2 * VCPU_HOUR, source))
    for peak in PEAKS:
        most = most_samples_per_second(peak, AMAZON, HIDDEN, BATCH)
        what = f"full softmax on one {peak.gpu}, at most"
        rows.append(_row(what, most, GPU_HOUR[peak.gpu], f"by arithmetic: {peak.source}"))
    runs = []
    for one in PUBLISHED:
        dollars = one.hours * one.dollars_an_hour
        samples = [bought(dollars, speed.median, threads * VCPU_HOUR) for speed in measured.values()]
        epochs = [f"{count / EPOCH_ROWS:,.0f}" for count in samples]
        runs.append([one.what, f"{one.hours:g}", f"{dollars:,.2f}", *epochs, one.source])
    headings = ["", "samples/s", "$ an hour", "minutes", "$", "minutes an epoch", "source"]
    for_money = [f"epochs of {name} for that price" for name in measured]
    parts = [
        "## A million samples (derived)",
        f"Derived, not measured, from the speeds below and from assumed prices: ${VCPU_HOUR:g} for an hour of a "
        f"vCPU, ${SPOT_VCPU_HOUR:g} on a spot VM, "
        + ", ".join(f"${price:g} for a VM with one {gpu}" for gpu, price in GPU_HOUR.items())
        + f". Set your own in bench/cluster/cost.py. Speeds measured here are those above, all others are for "
        f"Amazon-670K's shape with hidden {HIDDEN}; an epoch has {EPOCH_ROWS:,} rows. A sample of sampled softmax is "
        'not worth one of full softmax in accuracy. Rows with "at most" are bounds that no program reaches: all '
        f"multiplications at the GPU's peak, or all memory at its rate, nothing else, batch {BATCH}.",
        markdown_table(headings, rows),
        "## Whole runs (derived)",
        "Hours of training are published, not samples; the paper's abstract and its main results differ, so both are "
        "listed. Only prices can be compared: the price of a run, and the number of epochs that dslide trains for it. "
        "Real rows differ from the synthetic ones measured here. For Intel's SLIDE (arXiv 2103.10891) and BOLT (arXiv "
        "2303.17727) no times were found in the text.",
        markdown_table(["", "hours", "$ a run", *for_money, "source"], runs),
    ]
    return "\n\n".join(parts)
