"""The data sets of a folder, and the systems that are trained on them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dslide
from bench.lib.processes import ROOT, System
from bench.lib.sections import Metric
from dslide.config import load_toml
from dslide.data import detect_format
from dslide.errors import UserError
from dslide.util.units import counted

HELD_OUT = {"text8": "text8like.txt.xz"}  # recipes for data without a test file: rows are held out
HOLD_OUT = 0.01  # share of these rows
READING = ("format", "label_column", "text_column")  # options of a recipe that are needed to read its files
TREES = (1, 2, 3)
LIMIT = 6 * 3600.0  # seconds for one run
QUICK_EPOCHS = 2


@dataclass(frozen=True)
class Kind:
    """How a data format is measured."""

    metrics: tuple[Metric, ...]
    curve: str  # the metric drawn over time, by its name in the log
    test_rows: int = 0  # for each point of the curve but the last, which has all test rows; 0: all
    labelled: bool = False  # rows of features with labels, which peers can be trained on


LABELLED = Kind(
    tuple(
        Metric(f"{name}_at_{k}", f"{heading}@{k}", ".4f")
        for name, heading in (("p", "P"), ("psp", "PSP"), ("ndcg", "nDCG"))
        for k in (1, 3, 5)
    ),
    "p_at_1", labelled=True,
)  # fmt: skip
KINDS = {  # by format
    "interactions": Kind((Metric("r_at_20", "R@20", ".4f"), Metric("ndcg_at_20", "nDCG@20", ".4f")), "r_at_20", 4000),
    "tokens": Kind((Metric("test_loss", "test loss", ".4f"),), "loss", 4000),
}


@dataclass(frozen=True)
class DataSet:
    """Training and test file, with a recipe if there is one of that name."""

    name: str
    train: Path
    test: Path | None  # None: rows are held out
    format: str
    recipe: Path | None
    out: Path = field(compare=False)  # folder for what is written
    quick: bool = False
    peers_python: str = sys.executable

    @property
    def kind(self) -> Kind:
        return KINDS.get(self.format, LABELLED)

    @property
    def options(self) -> dict[str, Any]:
        """Those of the recipe."""
        return load_toml(self.recipe) if self.recipe else {}

    @property
    def reading(self) -> dict[str, Any]:
        """The options without which the files can't be read."""
        return {name: value for name, value in self.options.items() if name in READING}

    @property
    def words(self) -> Path:
        """The folder for the same rows as bags of words, for peers."""
        return self.out / self.name

    def defaults(self, name: str = "dslide, defaults", changes: Mapping[str, Any] | None = None) -> System:
        """dslide with defaults but these changes."""
        return self.system(name, self.reading | dict(changes or {}))

    def with_recipe(self, name: str = "dslide, recipe", changes: Mapping[str, Any] | None = None) -> System:
        """dslide with the recipe but these changes."""
        return self.system(name, {"config": str(self.recipe), **(changes or {})})

    def system(self, name: str, options: Mapping[str, Any], testing: Mapping[str, Any] | None = None) -> System:
        """dslide with these options on this data, tested as `testing` says, by default on the test file."""
        if testing is None:
            testing = {"hold_out": HOLD_OUT} if self.test is None else {"test": str(self.test)}
            testing = {**testing, "test_every": 1} | ({"test_rows": self.kind.test_rows} if self.kind.test_rows else {})
        epochs = {"epochs": QUICK_EPOCHS} if self.quick else {}
        arguments = {"data": str(self.train), "options": {**testing, **epochs, **options}, "curve": self.kind.curve}
        return self._made(System(name, "bench.accuracy.runs:train", arguments | {"out": str(self.out)}))

    def peers(self) -> list[System]:
        """Parabel and PECOS, if the data is of a kind that they can be trained on."""
        if not self.kind.labelled or self.test is None:
            return []
        wanted: list[tuple[str, str, str, dict[str, Any]]] = [
            (f"Parabel, {counted(n, 'tree')}", "omikuji", "parabel", {"trees": n}) for n in TREES
        ]
        wanted.append(("PECOS, XR-Linear", "pecos", "pecos", {}))
        shared = {"folder": str(self.words), "python": self.peers_python, "limit": LIMIT}
        return [
            self._made(
                System(name, "bench.accuracy.runs:peer", shared | {"name": function, "settings": settings}, needs)
            )
            for name, needs, function, settings in wanted
        ]

    def _made(self, system: System) -> System:
        """The system with its limit, beyond that which peers have themselves, and with the folder of its results:
        another one if data, options or dslide change."""
        files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in (self.train, self.test) if path]
        about = json.dumps([package_digest(), system.function, system.arguments, files], default=str)
        digest = hashlib.blake2b(about.encode(), digest_size=4).hexdigest()
        kept = self.out / "results" / self.name / f"{system.name.replace('/', '-')} {digest}"
        python = self.peers_python if system.needs else ""
        return dataclasses.replace(system, limit=LIMIT + 60, python=python, kept=str(kept))

    def command(self) -> str:
        """The command line of a user."""
        test = f"--hold-out {HOLD_OUT:g}" if self.test is None else f"--test {self.test.name}"
        return f"dslide train {self.train.name} {test}"


@functools.cache
def package_digest() -> str:
    """Of all files of dslide as it is installed."""
    digest = hashlib.blake2b(digest_size=8)
    folder = Path(dslide.__file__).parent
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".so"):
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def find_sets(data: Path, out: Path, quick: bool = False, peers_python: str = sys.executable) -> dict[str, DataSet]:
    """The sets of a folder, by name: pairs NAME.train.EXT and NAME.test.EXT, NAME/train.EXT and NAME/test.EXT, and
    NAME/X.trn.npz and NAME/X.tst.npz; and the files of recipes for data without a test file. Recipes are used for sets
    of their name and format."""
    found: dict[str, DataSet] = {}
    for name, train, test in _files(data):
        if name in found:
            sys.exit(f"{data}: both {found[name].train.name} and {train} are the set {name}: rename one of them")
        recipe, format = _recipe(name, train)
        if test is not None or recipe is not None:
            test = None if test is None else test.resolve()
            found[name] = DataSet(name, train.resolve(), test, format, recipe, out, quick, peers_python)
    return found


def _files(data: Path) -> Iterator[tuple[str, Path, Path | None]]:
    for path in sorted(data.iterdir()):
        if match := re.fullmatch(r"(.+)\.train(\..+)?", path.name):
            test = path.with_name(f"{match[1]}.test{match[2] or ''}")
            if test.exists():
                yield match[1], path, test
        elif path.is_dir():
            for train in sorted(path.iterdir()):
                if match := re.fullmatch(r"train(\..+)?", train.name):
                    test = path / f"test{match[1] or ''}"
                elif train.name == "X.trn.npz":
                    test = path / "X.tst.npz"
                else:
                    continue
                if test.exists():
                    yield path.name, train, test
    for name, file in HELD_OUT.items():
        if (data / file).exists():
            yield name, data / file, None


def _recipe(name: str, train: Path) -> tuple[Path | None, str]:
    """The recipe for the file, if there is one, and the file's format; "unknown" if only dslide's message about it can
    tell what is wrong."""
    recipe = ROOT / "recipes" / f"{name}.toml"
    expected = load_toml(recipe)["format"] if recipe.exists() else None
    if expected == "tokens":
        return recipe, expected
    try:
        format: str = detect_format(train)
    except UserError:
        format = "unknown"
    if expected == format or (expected == "interactions" and format == "libsvm"):
        return recipe, expected
    return None, format
