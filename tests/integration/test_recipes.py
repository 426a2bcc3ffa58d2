"""Every recipe in recipes/ is read by the real command line, and trains on tiny data of its format."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dslide.cli import main, train
from dslide.cli.parser import Parser, parse
from dslide.config import Config, load_toml
from dslide.data import FORMATS

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def make_tsv(path: Path, recipe: dict[str, Any], rows: int, seed: int) -> None:
    """Texts with a word for each of their labels, in the columns that the recipe names."""
    chance = random.Random(seed)
    lines = []
    for _ in range(rows):
        labels = chance.sample(range(12), chance.randint(1, 3))
        cells = ["other column"] * max(recipe["label_column"], recipe["text_column"])
        cells[recipe["label_column"] - 1] = " ".join(f"l{label}" for label in labels)
        words = [f"word{label}" for label in labels] + chance.choices(["and", "or", "the"], k=4)
        cells[recipe["text_column"] - 1] = " ".join(words)
        lines.append("\t".join(cells))
    path.write_text("\n".join(lines) + "\n")


def make_interactions(path: Path, recipe: dict[str, Any], rows: int, seed: int) -> None:
    """Users with some of the items of their group, of which there are five."""
    chance = random.Random(seed)
    lines = []
    for user in range(rows):
        items = chance.sample(range(10), 4)
        lines.append(" ".join(map(str, [user, *(user % 5 * 10 + item for item in items)])))
    path.write_text("\n".join(lines) + "\n")


def make_tokens(path: Path, recipe: dict[str, Any], rows: int, seed: int) -> None:
    """Words at random, of so many different ones that subsampling leaves some."""
    chance = random.Random(seed)
    path.write_text(" ".join(f"word{chance.randrange(500)}" for _ in range(20 * rows)) + "\n")


def make_xmc(path: Path, recipe: dict[str, Any], rows: int, seed: int) -> None:
    """Rows with a feature for each of their labels."""
    chance = random.Random(seed)
    lines = [f"{rows} 15 12"]
    for _ in range(rows):
        labels = sorted(chance.sample(range(12), chance.randint(1, 3)))
        features = [*labels, chance.randrange(12, 15)]
        lines.append(",".join(map(str, labels)) + "".join(f" {feature}:0.5" for feature in features))
    path.write_text("\n".join(lines) + "\n")


MAKERS: dict[str, Callable[[Path, dict[str, Any], int, int], None]] = {
    "tsv": make_tsv, "xmc": make_xmc, "interactions": make_interactions, "tokens": make_tokens
}  # by format  # fmt: skip


def test_there_are_recipes() -> None:
    assert {"citeulike", "eurlex57k", "gnd", "gowalla", "npm", "text8"} <= {path.stem for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_holds_options_of_dslide_train(path: Path) -> None:
    recipe = load_toml(path)
    assert recipe["format"] in FORMATS
    top = Parser(prog="dslide")
    command = top.add_subparsers(dest="command", parser_class=Parser).add_parser("train")
    train.add_arguments(command)
    arguments = parse(top, command, ["train", "data", "--config", str(path)])
    Config(**{name: value for name, value in vars(arguments).items() if hasattr(Config, name)})  # in their ranges
    content = path.read_text()
    assert f"--config recipes/{path.name}" in content  # the command line to begin with
    assert "# result: " in content


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains(path: Path, tmp_path: Path) -> None:
    recipe = load_toml(path)
    data, test, run = tmp_path / "train", tmp_path / "test", tmp_path / "run"
    make = MAKERS[recipe["format"]]  # a recipe of another format needs a maker of tiny data here
    make(data, recipe, 300, 0)
    make(test, recipe, 40, 1)
    measured = ["--test", str(test)] if " --test " in path.read_text() else ["--hold-out", "0.1"]
    small = ["--epochs", "1", "--threads", "1", "--quiet"]
    assert main(["train", str(data), *measured, "--config", str(path), "--out", str(run), *small]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rows"] == 300 or recipe["format"] == "tokens"  # whose rows are drawn anew in each epoch
    assert summary["test_rows"] > 0
    assert summary["config"]["epochs"] == 1
    given = {name: recipe[name] for name in recipe if name in summary["config"]} | {"hidden": [recipe["hidden"]]}
    assert {name: summary["config"][name] for name in given} == given | {"epochs": 1}
