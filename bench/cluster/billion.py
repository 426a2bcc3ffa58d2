"""Close to a billion parameters, and beyond, on an emulated cluster of small nodes: plan, train, checkpoint, resume on
another number of nodes, predict. Everything through the command line, as a user would; report.md and report.json.

Networks take turns, and only one of them is on the disk at a time. One that this machine has no room for is refused
before anything is made.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dslide import Config, netlab
from dslide.errors import UserError
from dslide.memory import available_bytes, format_bytes
from dslide.model_files import MANIFEST
from dslide.plan import Plan, plan
from dslide.run_folder import newest
from dslide.traffic import bytes_per_step

from ..machine import facts
from ..recipe_runs import as_arguments
from ..report import Summary, table
from ..workload import AMAZON, Shape, make_data, read_data

LAB = "billion"
BATCH, RATE = 256, 0.003
SPARE_DISK = 1_000_000_000  # bytes for everything but checkpoints
WATCHED = Path(__file__).with_name("watched.py")
AIM = 0.1  # by which memory may differ from the plan


@dataclass(frozen=True)
class Network:
    """What is trained: Amazon-670K's shape with one hidden layer."""

    hidden: int
    storage: str  # of weights and moments

    @property
    def options(self) -> dict[str, Any]:
        """Those of `dslide train`: without links and dropout, as in bench/workload."""
        return {
            "hidden": self.hidden, "weights": self.storage, "moments": self.storage, "batch_size": BATCH,
            "optimizer": "adam", "learning_rate": RATE, "schedule": "constant", "links": 0, "dropout_input": 0.0,
            "dropout_hidden": 0.0, "threads": 1, "checkpoints_kept": 1,
        }  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """One run of `dslide train`; those after the first resume the one before."""

    what: str
    nodes: int
    rate: str  # of each node's link
    epochs: int  # that are done at its end


STAGES = (
    Stage("trains", 4, "1gbit", 2),
    Stage("resumes on fewer nodes", 3, "1gbit", 3),
    Stage("resumes on slower links", 4, "100mbit", 4),
)


@dataclass(frozen=True)
class Size:
    """How much is done."""

    shape: Shape
    networks: tuple[Network, ...]
    test_rows: int  # that are predicted
    checkpoint_seconds: float  # between those that are made while training goes on
    limit: float  # seconds for each command


FULL = Size(AMAZON, (Network(1024, "float32"), Network(2000, "bf16")), 500, 30, 1800)
QUICK = Size(Shape(2000, 3000, 10_000, 200), (Network(16, "float32"), Network(24, "bf16")), 100, 0.5, 120)


def run(options: argparse.Namespace) -> int:
    """The experiment; `options` as in bench/cluster/__main__.py."""
    netlab.status(LAB)  # raises LabError at once where there can be no labs
    size = QUICK if options.quick else FULL
    data = make_data(options.data, size.shape)
    options.out.mkdir(parents=True, exist_ok=True)
    rounds = []
    for number in range(options.rounds or 1):
        for network in size.networks:
            say(f"round {number + 1}: hidden {network.hidden:,}, {network.storage}")
            rounds.append(asdict(network) | measured(network, size, data, options.out.resolve()))
    report = markdown(rounds, size)
    (options.out / "report.md").write_text(report)
    details = {"machine": facts(), "size": asdict(size), "batch_size": BATCH, "learning_rate": RATE}
    (options.out / "report.json").write_text(json.dumps({"about": details, "rounds": rounds}, indent=1) + "\n")
    print(report)
    say(f"written to {options.out}/report.md and report.json")
    return 0


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# ---- room ------------------------------------------------------------------------------------------------------------


def planned(network: Network, size: Size, data_bytes: int, nodes: int) -> Plan:
    """The memory of each node, as `dslide plan` tells it."""
    config = Config(**network.options, checkpoint_seconds=size.checkpoint_seconds)
    return plan(config, size.shape.features, size.shape.labels, data_bytes, nodes)


def room_needed(network: Network, size: Size, data_bytes: int) -> tuple[int, int]:
    """Bytes of memory on all nodes together, and of the disk: a checkpoint is removed when the next is complete."""
    plans = [planned(network, size, data_bytes, stage.nodes) for stage in STAGES]
    state = max(p.ranks * (p.parts["weights"] + p.parts["optimizer state"]) for p in plans)
    return max(p.ranks * p.bytes_total for p in plans), 2 * state + SPARE_DISK


def refusal(network: Network, needed: tuple[int, int], there: tuple[int, int], folder: Path) -> str:
    """Why there is no room for it, in a sentence; empty if there is. Both pairs are bytes of memory and of the disk."""
    what = f"hidden {network.hidden:,} in {network.storage} needs"
    if needed[0] > there[0]:
        return f"{what} {format_bytes(needed[0])} of memory, and {format_bytes(there[0])} are available"
    if needed[1] > there[1]:
        return f"{what} {format_bytes(needed[1])} of disk in {folder}, and {format_bytes(there[1])} are free"
    return ""


# ---- one network -----------------------------------------------------------------------------------------------------


def measured(network: Network, size: Size, data: Path, out: Path) -> dict[str, Any]:
    """All that is done with a network; its files are gone afterwards."""
    data_bytes = read_data(data).data_bytes
    needed = room_needed(network, size, data_bytes)
    if words := refusal(network, needed, (available_bytes(), shutil.disk_usage(out).free), out):
        raise UserError(words)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        (words,) = planned(network, size, data_bytes, STAGES[0].nodes).lines()
        found: dict[str, Any] = {"plan": words, "stages": []}
        for before, stage in zip((None, *STAGES), STAGES, strict=False):
            say(f"  {stage.what}: {stage.nodes} nodes, {stage.rate}, at most {size.limit:,.0f} s")
            found["stages"].append(trained(network, size, stage, before, data / "train.txt", Path(folder)))
        say(f"  predicts: {STAGES[-1].nodes} nodes, at most {size.limit:,.0f} s")
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
    summary = json.loads((out / "summary.json").read_text())
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    ended = [record["time"] for record in log if record["record"] == "end"][-1]
    checkpoint = newest(out)
    assert checkpoint is not None
    return figures(summary, log, stage, before, statistics.mean(node.sent for node in result.traffic)) | {
        "whole_seconds": result.seconds,
        "checkpoint_seconds": (checkpoint / MANIFEST).stat().st_mtime - ended,
        "checkpoint_bytes": sum(file.stat().st_size for file in checkpoint.iterdir()),
    }


def figures(
    summary: dict[str, Any], log: list[dict[str, Any]], stage: Stage, before: Stage | None, sent: float
) -> dict[str, Any]:
    """From a run's summary, its log and the bytes that a node sent. Speed is that of the last epoch."""
    epochs = [record for record in log if record["record"] == "epoch"]
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
    some, notes = folder / "some.txt", folder / "peaks"
    first_rows(test, some, size.test_rows)
    notes.mkdir()
    command = ["evaluate", str(folder / "run"), str(some), "--k", "1", "--threads", "1"]
    result, text = in_lab(command, STAGES[-1], size.limit, folder, notes)
    peaks = [int(note.read_text()) for note in notes.iterdir()]
    return evaluation(text) | {
        "rows": size.test_rows,
        "whole_seconds": result.seconds,
        "peak_bytes": max(peaks),
        "peak_bytes_of_all": sum(peaks),
    }


def evaluation(text: str) -> dict[str, float]:
    """P@1 and speed, from what `dslide evaluate` prints."""
    precision = re.search(r"^ *P@k +([\d.]+)", text, re.MULTILINE)
    speed = re.search(r"^exact prediction: ([\d,]+) rows/s", text, re.MULTILINE)
    assert precision is not None
    assert speed is not None
    return {"p_at_1": float(precision[1]), "rows_per_second": float(speed[1].replace(",", ""))}


def first_rows(source: Path, target: Path, rows: int) -> None:
    """Copies some rows of a file whose first line is its numbers of rows, features and labels."""
    with open(source, encoding="ascii") as file:
        there, *rest = file.readline().split()
        kept = min(rows, int(there))
        target.write_text(" ".join([str(kept), *rest]) + "\n" + "".join(islice(file, kept)))


def in_lab(
    command: list[str], stage: Stage, limit: float, folder: Path, notes: Path | None = None
) -> tuple[netlab.RunResult, str]:
    """Runs a dslide command on every node of a lab that is made for it; how it ended, and what it printed. With
    `notes`, each rank leaves its peak memory there."""
    start = ["-m", "dslide.cli"] if notes is None else [str(WATCHED), str(notes)]
    netlab.up(stage.nodes, stage.rate, LAB)
    try:
        with open(folder / "printed", "w+b") as printed:
            result = netlab.run([sys.executable, *start, *command], name=LAB, limit=limit, stdout=printed)
            printed.seek(0)
            text = printed.read().decode()
    finally:
        netlab.down(LAB)
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
        "Speed is that of the last epoch, which on resuming has the first build of the hash tables in it. Bytes a step "
        "are those on the interface of a node, start of the job included, those that the program counts, and those of "
        f"the formula, an upper bound. A checkpoint is begun every {size.checkpoint_seconds:g} s while training goes "
        "on; its seconds are of the last one, after training. Loss is the mean of the last epoch, sampled. Seconds "
        "in all are those of the command: reading, training and saving."
    )
    headings = [
        "parameters", "what: nodes, links", "samples/s", "waiting", "active outputs", "loss",
        "KB a step: on wire, counted, formula", "GB a node: planned, measured, ratio", "GB on all nodes",
        "checkpoint: s, GB", "seconds in all",
    ]  # fmt: skip
    predicting = ["parameters", "rows", "rows/s", "P@1", "seconds, loading included", "GB a node", "GB on all nodes"]
    parts = [
        "# Close to a billion", about, "What `dslide plan` says before:", "\n".join(plans), table(headings, training),
        "\n".join(verdicts(by_network)),
        f"Prediction by `dslide evaluate` on {STAGES[-1].nodes} nodes, exact over all labels:",
        table(predicting, prediction),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def cells(found: list[dict[str, Any]]) -> list[str]:
    """A stage's row."""

    def text(key: str, format: str, unit: float = 1) -> str:
        return Summary.of([figures[key] / unit for figures in found]).text(format)

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
    """Whether each network learned, and whether memory was foretold."""
    lines = []
    for (hidden, storage), found in by_network.items():
        stages = [stage for f in found for stage in f["stages"]]
        learned = all(f["stages"][-1]["loss"] < f["stages"][0]["first_loss"] for f in found)
        off = max((stage["peak_over_plan"] - 1 for stage in stages), key=abs)
        lines.append(
            f"- hidden {hidden:,}, {storage}: the loss {'falls' if learned else '**does not fall**'} from the first "
            f"epoch to the last; memory differs from the plan by {off:+.1%} at most, "
            f"{'within' if abs(off) <= AIM else '**not within**'} the {AIM:.0%} aimed at."
        )
    return lines
