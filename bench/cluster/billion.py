"""About a billion parameters, and more, on an emulated cluster of small nodes: plan, train, checkpoint, resume on
another number of nodes, predict, all through the command line; report.md and report.json.

Networks are interleaved in each round, and only one of them is on the disk at a time. A network that needs more memory
or disk than this machine has is refused at the start.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bench.cluster.labs import lab
from bench.lib.commands import as_arguments, read_records, read_summary
from bench.lib.machine import facts
from bench.lib.measuring import log, write_report
from bench.lib.sections import Summary
from bench.lib.tables import markdown_table
from bench.lib.workload import AMAZON, TINY, Shape, make_data, read_data
from dslide import Config, netlab
from dslide.checkpoint.manifest import MANIFEST
from dslide.checkpoint.run_folder import newest
from dslide.errors import UserError
from dslide.planner.memory import Plan, plan
from dslide.planner.traffic import bytes_per_step
from dslide.util.memory import available_bytes
from dslide.util.units import format_bytes

BATCH, RATE = 256, 0.003
SPARE_DISK = 1_000_000_000  # bytes for everything but checkpoints
PEAK_MEMORY = Path(__file__).with_name("peak_memory.py")
TOLERANCE = 0.1  # of memory, relative to the plan


@dataclass(frozen=True)
class Network:
    """A network of Amazon-670K's shape with one hidden layer."""

    hidden: int
    storage: str  # of weights and moments

    @property
    def options(self) -> dict[str, Any]:
        """Options of `dslide train`: without label prior and dropout, as in bench/lib/workload.py."""
        return {
            "hidden": self.hidden, "weights": self.storage, "moments": self.storage, "batch_size": BATCH,
            "optimizer": "adam", "learning_rate": RATE, "schedule": "constant", "prior_labels": 0, "dropout_input": 0.0,
            "dropout_hidden": 0.0, "threads": 1, "checkpoints_kept": 1,
        }  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """One run of `dslide train`; each one after the first resumes the one before."""

    what: str
    nodes: int
    rate: str  # of each node's link
    epochs: int  # completed at its end


STAGES = (
    Stage("trains", 4, "1gbit", 2),
    Stage("resumes on fewer nodes", 3, "1gbit", 3),
    Stage("resumes on slower links", 4, "100mbit", 4),
)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    shape: Shape
    networks: tuple[Network, ...]
    test_rows: int
    checkpoint_seconds: float  # between checkpoints during training
    limit: float  # seconds for each command


FULL = Size(AMAZON, (Network(1024, "float32"), Network(2000, "bf16")), 500, 30, 1800)
QUICK = Size(TINY, (Network(16, "float32"), Network(24, "bf16")), 100, 0.5, 120)


def run(options: argparse.Namespace) -> int:
    """The experiment; `options` as in bench/cluster/__main__.py."""
    netlab.status("bench")  # LabError at once if there can be no labs
    size = QUICK if options.quick else FULL
    data = make_data(options.data, size.shape)
    options.out.mkdir(parents=True, exist_ok=True)
    rounds = []
    for number in range(options.rounds or 1):
        for network in size.networks:
            log(f"round {number + 1}: hidden {network.hidden:,}, {network.storage}")
            rounds.append(asdict(network) | measured(network, size, data, options.out.resolve()))
    details = {"machine": facts(), "size": asdict(size), "batch_size": BATCH, "learning_rate": RATE}
    write_report(options.out, markdown(rounds, size), {"about": details, "rounds": rounds})
    return 0


# ---- memory and disk -------------------------------------------------------------------------------------------------


def planned(network: Network, size: Size, data_bytes: int, nodes: int) -> Plan:
    """The memory of each node, as in `dslide plan`."""
    config = Config(**network.options, checkpoint_seconds=size.checkpoint_seconds)
    return plan(config, size.shape.features, size.shape.labels, data_bytes, nodes)


def space_needed(network: Network, size: Size, data_bytes: int) -> tuple[int, int]:
    """Bytes of memory on all nodes together, and of the disk: a checkpoint is removed when the next is complete."""
    plans = [planned(network, size, data_bytes, stage.nodes) for stage in STAGES]
    state = max(p.ranks * (p.parts["weights"] + p.parts["optimizer state"]) for p in plans)
    return max(p.ranks * p.bytes_total for p in plans), 2 * state + SPARE_DISK


def refusal(network: Network, needed: tuple[int, int], there: tuple[int, int], folder: Path) -> str:
    """Why it can't run, in a sentence; empty if it can. Both pairs are bytes of memory and of the disk."""
    what = f"hidden {network.hidden:,} in {network.storage} needs"
    if needed[0] > there[0]:
        return f"{what} {format_bytes(needed[0])} of memory, and {format_bytes(there[0])} are available"
    if needed[1] > there[1]:
        return f"{what} {format_bytes(needed[1])} of disk in {folder}, and {format_bytes(there[1])} are free"
    return ""


# ---- one network -----------------------------------------------------------------------------------------------------


def measured(network: Network, size: Size, data: Path, out: Path) -> dict[str, Any]:
    """All stages of a network; its files are removed afterwards."""
    data_bytes = read_data(data).data_bytes
    needed = space_needed(network, size, data_bytes)
    if reason := refusal(network, needed, (available_bytes(), shutil.disk_usage(out).free), out):
        raise UserError(reason)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        (line,) = planned(network, size, data_bytes, STAGES[0].nodes).lines()
        found: dict[str, Any] = {"plan": line, "stages": []}
        for before, stage in zip((None, *STAGES), STAGES, strict=False):
            log(f"  {stage.what}: {stage.nodes} nodes, {stage.rate}, at most {size.limit:,.0f} s")
            found["stages"].append(trained(network, size, stage, before, data / "train.txt", Path(folder)))
        log(f"  predicts: {STAGES[-1].nodes} nodes, at most {size.limit:,.0f} s")
        found["prediction"] = predicted(size, data / "test.txt", Path(folder))
    return found


def trained(
    network: Network, size: Size, stage: Stage, before: Stage | None, train: Path, folder: Path
) -> dict[str, Any]:
    """A run of `dslide train` on a lab of its own."""
    out = folder / "run"
    given: dict[str, Any] = {"epochs": stage.epochs, "checkpoint_seconds": size.checkpoint_seconds}
    if before is None:
        given |= network.options | {"out": out}
    else:
        given |= {"threads": 1, "resume": out}
    result, _ = in_lab(["train", str(train), "--quiet", *as_arguments(given)], stage, size.limit, folder)
    summary, records = read_summary(out), read_records(out / "log.jsonl")
    ended = [record["time"] for record in records if record["record"] == "end"][-1]
    checkpoint = newest(out)
    assert checkpoint is not None
    return results(summary, records, stage, before, statistics.mean(node.sent for node in result.traffic)) | {
        "whole_seconds": result.seconds,
        "checkpoint_seconds": (checkpoint / MANIFEST).stat().st_mtime - ended,
        "checkpoint_bytes": sum(file.stat().st_size for file in checkpoint.iterdir()),
    }


def results(
    summary: dict[str, Any], records: list[dict[str, Any]], stage: Stage, before: Stage | None, sent: float
) -> dict[str, Any]:
    """Results from a run's summary, its log and the bytes that a node sent. Speed is that of the last epoch."""
    epochs = [record for record in records if record["record"] == "epoch"]
    steps = summary["steps"] // summary["epochs"] * (stage.epochs - (before.epochs if before else 0))
    config = Config(**summary["config"])
    peaks = [rank["peak_rss_bytes"] for rank in summary["per_rank"]]
    return {
        "parameters": summary["parameters"],
        "samples_per_second": epochs[-1]["samples_per_second"],
        "loss": epochs[-1]["loss"],
        "first_loss": epochs[0]["loss"],
        "waiting": summary["comm_seconds"] / summary["seconds"],
        "active": summary["active_neurons_mean"],
        "bytes_on_wire": sent / steps,
        "bytes_counted": summary["bytes_sent_per_step"],
        "bytes_by_formula": bytes_per_step(config, summary["labels"], stage.nodes),
        "planned_bytes": summary["planned_bytes"],
        "peak_bytes": max(peaks),
        "peak_over_plan": max(peaks) / summary["planned_bytes"],
        "peak_bytes_of_all": sum(peaks),
    }


def predicted(size: Size, test: Path, folder: Path) -> dict[str, float]:
    """A run of `dslide evaluate` on the nodes of the last stage, over the first rows of the test data."""
    some, peak_files = folder / "some.txt", folder / "peaks"
    first_rows(test, some, size.test_rows)
    peak_files.mkdir()
    command = ["evaluate", str(folder / "run"), str(some), "--k", "1", "--threads", "1"]
    result, text = in_lab(command, STAGES[-1], size.limit, folder, peak_files)
    peaks = [int(file.read_text()) for file in peak_files.iterdir()]
    return evaluation(text) | {
        "rows": size.test_rows,
        "whole_seconds": result.seconds,
        "peak_bytes": max(peaks),
        "peak_bytes_of_all": sum(peaks),
    }


def evaluation(text: str) -> dict[str, float]:
    """P@1 and speed, from the output of `dslide evaluate`."""
    precision = re.search(r"^ *P@k +([\d.]+)", text, re.MULTILINE)
    speed = re.search(r"^exact prediction: ([\d,]+) rows/s", text, re.MULTILINE)
    assert precision is not None
    assert speed is not None
    return {"p_at_1": float(precision[1]), "rows_per_second": float(speed[1].replace(",", ""))}


def first_rows(source: Path, target: Path, rows: int) -> None:
    """Copies the first rows of a file whose first line has the numbers of rows, features and labels."""
    with open(source, encoding="ascii") as file:
        total, *rest = file.readline().split()
        kept = min(rows, int(total))
        target.write_text(" ".join([str(kept), *rest]) + "\n" + "".join(islice(file, kept)))


def in_lab(
    command: list[str], stage: Stage, limit: float, folder: Path, peak_files: Path | None = None
) -> tuple[netlab.JobResult, str]:
    """Runs a dslide command on every node of a lab of its own; its result and output. With `peak_files`, a folder, each
    rank writes its peak memory there."""
    start = ["-m", "dslide.cli"] if peak_files is None else [str(PEAK_MEMORY), str(peak_files)]
    with lab(stage.nodes, stage.rate) as name, open(folder / "output", "w+b") as output:
        result = netlab.run([sys.executable, *start, *command], name=name, limit=limit, stdout=output)
        output.seek(0)
        text = output.read().decode()
    if result.code != 0:
        raise UserError(f"dslide {command[0]} on {stage.nodes} nodes failed with code {result.code}")
    return result, text


# ---- the report ------------------------------------------------------------------------------------------------------


def markdown(rounds: list[dict[str, Any]], size: Size) -> str:
    """Tables of training and of prediction, medians with the lowest and highest value if there are several rounds."""
    by_network: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for found in rounds:
        by_network.setdefault((found["hidden"], found["storage"]), []).append(found)
    training, prediction, plans = [], [], []
    for (hidden, storage), every in by_network.items():
        name = f"{every[0]['stages'][0]['parameters']:,}, hidden {hidden:,}, {storage}"
        plans.append(f"- hidden {hidden:,}, {storage}: {every[0]['plan']}")
        for i, stage in enumerate(STAGES):
            runs = cells([each["stages"][i] for each in every])
            training.append([name, f"{stage.what}: {stage.nodes}, {stage.rate}", *runs])
        prediction.append([name, *prediction_cells([each["prediction"] for each in every])])
    shape = size.shape
    about = (
        f"{shape.features:,} features, {shape.labels:,} labels, {shape.rows:,} synthetic rows, batch {BATCH}, Adam at "
        f"{RATE:g}, default sampling, bf16 on the wire, a thread on each node, {STAGES[0].epochs} epochs and one more "
        "each time the run is resumed. All nodes share this machine's cores: speeds are not those of as many machines. "
        "Speed is that of the last epoch, which in a resumed run includes the first build of the hash tables. Bytes a "
        "step are those on the interface of a node, start of the job included, those counted by dslide, and those of "
        f"the formula, an upper bound. Checkpoints begin every {size.checkpoint_seconds:g} s during training; their "
        "seconds are those of the last one, after training. Loss is the mean of the last epoch, sampled. Total seconds "
        "are those of the command: reading, training and saving."
    )
    headings = [
        "parameters", "stage: nodes, links", "samples/s", "waiting", "active outputs", "loss",
        "KB a step: on wire, counted, formula", "GB a node: planned, measured, ratio", "GB on all nodes",
        "checkpoint: s, GB", "total seconds",
    ]  # fmt: skip
    predicting = ["parameters", "rows", "rows/s", "P@1", "seconds, loading included", "GB a node", "GB on all nodes"]
    parts = [
        "# A billion parameters", about, "Predictions of `dslide plan`:", "\n".join(plans),
        markdown_table(headings, training),
        "\n".join(verdicts(by_network)),
        f"Prediction by `dslide evaluate` on {STAGES[-1].nodes} nodes, exact over all labels:",
        markdown_table(predicting, prediction),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def cells(found: list[dict[str, Any]]) -> list[str]:
    """A stage's row."""

    def text(key: str, format: str, unit: float = 1) -> str:
        return Summary.of([result[key] / unit for result in found]).text(format)

    wire = ", ".join(text(f"bytes_{name}", ",.0f", 1e3) for name in ("on_wire", "counted", "by_formula"))
    memory = f"{text('planned_bytes', '.2f', 1e9)}, {text('peak_bytes', '.2f', 1e9)}, {text('peak_over_plan', '.2f')}"
    return [
        text("samples_per_second", ",.0f"),
        text("waiting", ".0%"),
        text("active", ",.0f"),
        text("loss", ".3f"),
        wire,
        memory,
        text("peak_bytes_of_all", ".2f", 1e9),
        f"{text('checkpoint_seconds', ',.1f')}, {text('checkpoint_bytes', '.2f', 1e9)}",
        text("whole_seconds", ",.0f"),
    ]


def prediction_cells(found: list[dict[str, Any]]) -> list[str]:
    columns = [
        ("rows", ",.0f", 1), ("rows_per_second", ",.0f", 1), ("p_at_1", ".3f", 1), ("whole_seconds", ",.0f", 1),
        ("peak_bytes", ".2f", 1e9), ("peak_bytes_of_all", ".2f", 1e9),
    ]  # fmt: skip
    return [Summary.of([f[key] / unit for f in found]).text(format) for key, format, unit in columns]


def verdicts(by_network: dict[tuple[int, str], list[dict[str, Any]]]) -> list[str]:
    """Whether the loss of each network fell, and whether its memory was predicted."""
    lines = []
    for (hidden, storage), found in by_network.items():
        stages = [stage for f in found for stage in f["stages"]]
        learned = all(f["stages"][-1]["loss"] < f["stages"][0]["first_loss"] for f in found)
        off = max((stage["peak_over_plan"] - 1 for stage in stages), key=abs)
        lines.append(
            f"- hidden {hidden:,}, {storage}: the loss {'falls' if learned else '**does not fall**'} from the first "
            f"epoch to the last; memory differs from the plan by {off:+.1%} at most, "
            f"{'within' if abs(off) <= TOLERANCE else '**not within**'} the {TOLERANCE:.0%} allowed."
        )
    return lines
