"""Sections of the accuracy benchmark: each recipe beside defaults, full softmax and peers, and an ablation."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.accuracy.runs import READING, write_bag_of_words
from bench.lib.charts import write_chart
from bench.lib.measuring import exit_code, log, measure
from bench.lib.processes import ROOT, Outcome, System
from bench.lib.sections import Comparison, Metric, Section
from bench.lib.training import MEMORY, SECONDS
from dslide.config import load_toml
from dslide.util.units import counted

RAW = {  # recipe: training file and test file; without a test file rows are held out
    "citeulike": ("citeulike.train.txt.xz", "citeulike.test.txt.xz"),
    "eurlex57k": ("eurlex57k.train.tsv.xz", "eurlex57k.test.tsv.xz"),
    "gnd": ("gnd.train.tsv.xz", "gnd.test.tsv.xz"),
    "gowalla": ("gowalla.train.txt.xz", "gowalla.test.txt.xz"),
    "npm": ("npm.train.tsv.xz", "npm.test.tsv.xz"),
    "text8": ("text8like.txt.xz", None),
}
ACTIVE = Metric("active_neurons_mean", "active outputs")
HOLD_OUT = 0.01  # share of the rows, if there is no test file
TEST_ROWS = 4000  # for each point of a curve but the last, which has all test rows
TREES = (1, 2, 3)
LIMIT = 6 * 3600.0  # seconds for one run
QUICK_EPOCHS = 2

ABLATION_OF = "gnd"
ABLATION: dict[str, dict[str, Any]] = {  # changed options
    "as the recipe": {},
    "full softmax": {"output": "full"},
    "hash hits and random negatives": {"output": "lsh"},
    "hash hits only": {"output": "lsh", "random_negatives": 0},
    "2,048 random negatives": {"output": "random", "random_negatives": 2048},
    "labels of the batch only": {"output": "random", "random_negatives": 0},
    "corrected": {"correction": True},
    "no label prior": {"prior_labels": 0},
    "label prior counted only": {"prior_learning_rate": 0},
    "no labels looked up by the prior": {"prior_hits": 0},
    "prior power .5": {"prior_power": 0.5},
    "no dropout": {"dropout_input": 0, "dropout_hidden": 0},
    "dropout of inputs only": {"dropout_hidden": 0},
    "dropout of hidden only": {"dropout_input": 0},
    "hidden 128": {"hidden": 128},
    "hidden 256": {"hidden": 256},
    "hidden 1,024": {"hidden": 1024},
    "sigmoid": {"loss": "sigmoid"},
    "ReLU": {"activation": "relu"},
    "Adam .01": {"optimizer": "adam", "learning_rate": 0.01},
}


@dataclass(frozen=True)
class Kind:
    """How a data format is measured."""

    metrics: tuple[Metric, ...]
    curve: str  # the metric drawn over time, by its name in the log
    peers: bool = False  # Parabel and PECOS can be trained on it


LABELLED = Kind(
    tuple(Metric(f"{name}_at_{k}", f"{name.upper()}@{k}", ".4f") for name in ("p", "psp") for k in (1, 3, 5)),
    "p_at_1", peers=True,
)  # fmt: skip
KINDS = {
    "tsv": LABELLED,
    "xmc": LABELLED,
    "interactions": Kind((Metric("r_at_20", "R@20", ".4f"), Metric("ndcg_at_20", "nDCG@20", ".4f")), "r_at_20"),
    "tokens": Kind((Metric("test_loss", "test loss", ".4f"),), "loss"),
}


@dataclass(frozen=True)
class Task:
    """A recipe and its files."""

    name: str
    recipe: Path
    train: Path
    test: Path | None
    out: Path
    quick: bool

    @property
    def options(self) -> dict[str, Any]:
        return load_toml(self.recipe)

    @property
    def kind(self) -> Kind:
        return KINDS[self.options["format"]]

    def system(self, name: str, options: Mapping[str, Any]) -> System:
        """dslide with these options on this data."""
        testing = {"hold_out": HOLD_OUT} if self.test is None else {"test": str(self.test)}
        testing |= {"test_every": 1, "test_rows": TEST_ROWS}
        epochs = {"epochs": QUICK_EPOCHS} if self.quick else {}
        arguments = {"data": str(self.train), "options": testing | dict(options) | epochs, "curve": self.kind.curve}
        return System(name, "bench.accuracy.runs:train", arguments | {"out": str(self.out)}, limit=LIMIT)

    def with_recipe(self, name: str, changes: Mapping[str, Any] | None = None) -> System:
        return self.system(name, {"config": str(self.recipe), **(changes or {})})

    def command(self) -> str:
        """The command line of a user."""
        test = f"--hold-out {HOLD_OUT:g}" if self.test is None else f"--test {self.test.name}"
        return f"dslide train {self.train.name} {test} --config recipes/{self.recipe.name}"


def find_tasks(data: Path, out: Path, quick: bool) -> dict[str, Task]:
    """The recipes whose files are in the folder."""
    tasks = {}
    for name, (train, test) in RAW.items():
        recipe = ROOT / "recipes" / f"{name}.toml"
        files = [data / train] if test is None else [data / train, data / test]
        if recipe.exists() and all(file.exists() for file in files):
            train_file, *test_files = (file.resolve() for file in files)
            tasks[name] = Task(name, recipe, train_file, test_files[0] if test_files else None, out, quick)
    return tasks


def section(task: Task) -> Section:
    """The recipe beside defaults, full softmax and peers."""
    kind, options = task.kind, task.options
    recipe = task.with_recipe("dslide, recipe")
    every = {"output": "full"}
    full = [] if every.items() <= options.items() else [task.with_recipe("dslide, recipe, all outputs", every)]
    defaults = task.system("dslide, defaults", {name: options[name] for name in READING if name in options})
    peers = []
    if kind.peers:
        runs, work = "bench.accuracy.runs", {"folder": str(task.out / task.name)}
        peers = [
            System(f"Parabel, {counted(n, 'tree')}", f"{runs}:parabel", work | {"trees": n}, "omikuji", limit=LIMIT)
            for n in TREES
        ]
        peers.append(System("PECOS, XR-Linear", f"{runs}:pecos", work, "pecos", limit=LIMIT))
    main_metric = kind.metrics[0]
    return Section(
        task.name,
        f"`{task.command()}`. Seconds are those of training, without reading and testing."
        + (" Peers have the same bag of words, and default settings; Parabel (omikuji) takes no seed." if peers else "")
        + f"\n\n![{main_metric.heading} over seconds of training]({task.name}.svg)",
        [recipe, defaults, *full, *peers],
        [*kind.metrics, SECONDS, MEMORY[0]],
        [
            comparison
            for other in (defaults, *full, *peers[-2:])
            for comparison in (Comparison(recipe, other, main_metric, "difference"), Comparison(other, recipe, SECONDS))
        ],
    )


def ablation(task: Task) -> Section:
    """One change at a time."""
    systems = [task.with_recipe(name, changes) for name, changes in ABLATION.items()]
    return Section(
        "ablation",
        f"`{task.command()}`, with one change at a time. Ways of sampling are to be compared at equal cost: see their "
        "seconds and active outputs.",
        systems,
        [*task.kind.metrics, SECONDS, ACTIVE, MEMORY[0]],
        [Comparison(system, systems[0], task.kind.metrics[0], "difference") for system in systems[1:]],
    )


def curves(section: Section, outcomes: Mapping[System, Outcome]) -> dict[str, list[tuple[float, float]]]:
    """Medians over the rounds for each point. Parabel's numbers of trees are points of one line."""
    found: dict[str, list[tuple[float, float]]] = {}
    for system in section.systems:
        rounds: list[Any] = [result["curve"] for result in outcomes[system].rounds]
        points = [_median_point(run) for run in zip(*rounds, strict=True)]
        name = f"Parabel, {TREES[0]} to {TREES[-1]} trees" if system.name.startswith("Parabel") else system.name
        found[name] = found.get(name, []) + points
    return found


def _median_point(points: Sequence[Sequence[float]]) -> tuple[float, float]:
    seconds, values = zip(*points, strict=True)
    return statistics.median(seconds), statistics.median(values)


def run(data: Path, only: Sequence[str] | None, seeds: Sequence[int], quick: bool, out: Path) -> int:
    """Measures the named recipes, or every recipe whose files exist; returns 1 if a system failed."""
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    tasks = find_tasks(data, out, quick)
    for name in only or ():
        if (ABLATION_OF if name == "ablation" else name) not in tasks:
            sys.exit(f"{name}: the recipe, or its files in {data}, are missing")
    chosen = {name: tasks[name] for name in only or tasks if name != "ablation"}
    if not chosen and not only:
        sys.exit(f"{data}: contains no files of any recipe, such as {RAW['gnd'][0]}")
    sections = {name: section(task) for name, task in chosen.items()}
    for task in chosen.values():
        if task.kind.peers and task.test and any(map(importlib.util.find_spec, ("omikuji", "pecos"))):
            log(f"writing the bag of words of {task.name}")
            write_bag_of_words(task.options, task.train, task.test, out / task.name)
    ablations = [ablation(tasks[ABLATION_OF])] if "ablation" in (only or ()) else []
    details = {"seeds": list(seeds), "quick": quick, "recipes": {name: task.options for name, task in chosen.items()}}
    outcomes = measure([*sections.values(), *ablations], seeds, out, details)
    for name, task in chosen.items():
        title = f"{name}: {task.kind.metrics[0].heading} over time"
        write_chart(out / f"{name}.svg", title, task.kind.metrics[0].heading, curves(sections[name], outcomes))
    return exit_code(outcomes)
