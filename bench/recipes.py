"""What the recipes reach on real data, beside defaults, full softmax and Parabel: report.md, report.json and pictures.

    python -m bench.recipes DATA_FOLDER [--only gnd ...] [--seeds 0 1 2] [--quick] [--out build/recipes]

DATA_FOLDER has the raw files (see RAW); recipes whose files are not there are left out. `--only ablation` changes one
thing of the recipe for GND at a time. Systems take turns, each time in a fresh process. Parabel is run if omikuji is
installed (pip install omikuji), PECOS if that is; its wheel needs an environment with numpy<2 and scipy<1.14, and of
what it asks for nothing else (pip install --no-deps libpecos).
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dslide.config import load_toml

from .measuring import measure, to_end
from .picture import write_curves
from .recipe_runs import READING, write_bag_of_words
from .report import Comparison, Figure, Section
from .runs import ROOT, Outcome, System

RAW = {  # recipe: training file and test file; without a test file rows are held out
    "eurlex57k": ("eurlex57k.train.tsv.xz", "eurlex57k.test.tsv.xz"),
    "gnd": ("gnd.train.tsv.xz", "gnd.test.tsv.xz"),
    "gowalla": ("gowalla.train.txt.xz", "gowalla.test.txt.xz"),
    "text8": ("text8like.txt.xz", None),
}
SECONDS, MEMORY = Figure("seconds", "seconds", ",.1f"), Figure("peak_gigabytes", "most memory, GB", ".2f")
ACTIVE = Figure("active_neurons_mean", "active outputs")
HOLD_OUT = 0.01  # share of the rows, where there is no test file
TEST_ROWS = 4000  # for points along the way; the last point is of all test rows
TREES = (1, 2, 3)
LIMIT = 6 * 3600.0  # seconds for one run
QUICK_EPOCHS = 2

ABLATION_OF = "gnd"
ABLATION: dict[str, dict[str, Any]] = {  # options changed; seconds and active outputs say what is of equal cost
    "as the recipe": {},
    "full softmax": {"output": "full"},
    "hash hits and random": {"output": "lsh"},
    "hash hits only": {"output": "lsh", "draws": 0},
    "2,048 random": {"output": "random", "draws": 2048},
    "labels of the batch only": {"output": "random", "draws": 0},
    "corrected": {"correction": True},
    "no links": {"links": 0},
    "links of power .5": {"link_power": 0.5},
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
    """How data of a format is measured."""

    figures: tuple[Figure, ...]
    curve: str  # the metric drawn over time, as the log calls it
    peer: bool = False  # Parabel and PECOS can be trained on it


KINDS = {
    "tsv": Kind(tuple(Figure(f"p_at_{k}", f"P@{k}", ".4f") for k in (1, 3, 5)), "p_at_1", peer=True),
    "interactions": Kind((Figure("r_at_20", "R@20", ".4f"), Figure("ndcg_at_20", "nDCG@20", ".4f")), "r_at_20"),
    "tokens": Kind((Figure("test_loss", "test loss", ".4f"),), "loss"),
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
        return System(name, "bench.recipe_runs:train", arguments | {"out": str(self.out)}, limit=LIMIT)

    def with_recipe(self, name: str, changes: Mapping[str, Any] | None = None) -> System:
        return self.system(name, {"config": str(self.recipe), **(changes or {})})

    def command(self) -> str:
        """What a user would type."""
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
    """The recipe beside defaults, full softmax and Parabel."""
    kind, options = task.kind, task.options
    recipe = task.with_recipe("dslide, recipe")
    every = {"output": "full"}  # which some recipes have themselves
    full = [] if every.items() <= options.items() else [task.with_recipe("dslide, recipe, all outputs", every)]
    defaults = task.system("dslide, defaults", {name: options[name] for name in READING if name in options})
    peers = []
    if kind.peer:
        folder = str(task.out / task.name)
        names = {trees: f"Parabel, {trees} tree{'s' * (trees > 1)}" for trees in TREES}
        peers = [
            System(name, "bench.recipe_runs:parabel", {"folder": folder, "trees": trees}, needs="omikuji", limit=LIMIT)
            for trees, name in names.items()
        ]
        peers.append(
            System("PECOS, XR-Linear", "bench.recipe_runs:pecos", {"folder": folder}, needs="pecos", limit=LIMIT)
        )
    main_figure = kind.figures[0]
    return Section(
        task.name,
        f"`{task.command()}`. Seconds are those of training, without reading and testing."
        + (" Peers have the same bag of words, their own settings; Parabel (omikuji) takes no seed." if peers else "")
        + f"\n\n![{main_figure.heading} over seconds of training]({task.name}.svg)",
        [recipe, defaults, *full, *peers],
        [*kind.figures, SECONDS, MEMORY],
        [
            comparison
            for other in (defaults, *full, *peers[-2:])
            for comparison in (Comparison(recipe, other, main_figure, "difference"), Comparison(other, recipe, SECONDS))
        ],
    )


def ablation(task: Task) -> Section:
    """One thing changed at a time."""
    systems = [task.with_recipe(name, changes) for name, changes in ABLATION.items()]
    return Section(
        "ablation",
        f"`{task.command()}`, with one thing changed. What costs the same is to be compared: hash hits, random outputs "
        "and the batch's own labels beside their seconds and active outputs.",
        systems,
        [*task.kind.figures, SECONDS, ACTIVE, MEMORY],
        [Comparison(system, systems[0], task.kind.figures[0], "difference") for system in systems[1:]],
    )


def curves(section: Section, outcomes: Mapping[System, Outcome]) -> dict[str, list[tuple[float, float]]]:
    """Medians over the rounds, point by point. The numbers of Parabel's trees are points of one line."""
    found: dict[str, list[tuple[float, float]]] = {}
    for system in section.systems:
        rounds: list[Any] = [figures["curve"] for figures in outcomes[system].figures]
        points = [_median_point(run) for run in zip(*rounds, strict=True)]
        name = f"Parabel, {TREES[0]} to {TREES[-1]} trees" if system.name.startswith("Parabel") else system.name
        found[name] = found.get(name, []) + points
    return found


def _median_point(points: Sequence[Sequence[float]]) -> tuple[float, float]:
    seconds, values = zip(*points, strict=True)
    return statistics.median(seconds), statistics.median(values)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.recipes", description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER", help="folder with the raw files")
    names = [*RAW, "ablation"]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_EPOCHS} epochs and the first seed")
    parser.add_argument("--out", type=Path, default=Path("build/recipes"), help="folder for report and pictures")
    options = parser.parse_args()
    seeds = options.seeds[:1] if options.quick else options.seeds
    return run(options.data, options.only, seeds, options.quick, options.out)


def run(data: Path, only: Sequence[str] | None, seeds: Sequence[int], quick: bool, out: Path) -> int:
    """Measures what is asked for, or every recipe whose files are there; returns 1 if a system failed."""
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    tasks = find_tasks(data, out, quick)
    for name in only or ():
        if (ABLATION_OF if name == "ablation" else name) not in tasks:
            sys.exit(f"{name}: the recipe, or its files in {data}, are missing")
    chosen = {name: tasks[name] for name in only or tasks if name != "ablation"}
    if not chosen and not only:
        sys.exit(f"{data}: there are no files of any recipe in it, such as {RAW['gnd'][0]}")
    sections = {name: section(task) for name, task in chosen.items()}
    for task in chosen.values():
        if task.kind.peer and task.test and any(map(importlib.util.find_spec, ("omikuji", "pecos"))):
            print(f"writing the bag of words of {task.name}", file=sys.stderr, flush=True)
            write_bag_of_words(task.options, task.train, task.test, out / task.name)
    ablations = [ablation(tasks[ABLATION_OF])] if "ablation" in (only or ()) else []
    details = {"seeds": list(seeds), "quick": quick, "recipes": {name: task.options for name, task in chosen.items()}}
    outcomes = measure([*sections.values(), *ablations], seeds, out, details)
    for name, task in chosen.items():
        title = f"{name}: {task.kind.figures[0].heading} over time"
        write_curves(out / f"{name}.svg", title, task.kind.figures[0].heading, curves(sections[name], outcomes))
    return int(any(outcome.failed for outcome in outcomes.values()))


if __name__ == "__main__":
    to_end(main)
