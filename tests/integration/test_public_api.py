"""The public API is `__all__` of dslide, dslide.data, dslide.comm, dslide.torch and dslide.tracking: every name exists
and has a docstring. And every option and dotted name that README and docs mention exists."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dslide
from dslide.cli import COMMANDS
from dslide.cli.parser import Parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = ["dslide", "dslide.data", "dslide.comm", "dslide.torch", "dslide.tracking"]
OTHER_PROGRAMS = [
    "mpiexec", "mpirun", "srun", "#SBATCH", "scancel", "apt-get", "pip", "tensorboard", "hf", "cibuildwheel",
    "torchrun", "kubectl", "podman", "docker", r"python tests/\S+",
]  # fmt: skip
OF_SLURM = {"--signal", "--mpi"}  # options of sbatch and srun that pages name alone


def public_objects() -> Iterator[tuple[str, Any]]:
    """Public functions and classes, and what is public of these classes, by their dotted names."""
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value) or inspect.isfunction(value):  # constants and type aliases have no docstring
                yield f"{module}.{name}", value
            if inspect.isclass(value):
                yield from ((f"{module}.{name}.{member}", found) for member, found in public_members(value))


def public_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties of a class and of its bases in dslide."""
    for base in cls.__mro__:
        if base.__module__.split(".")[0] != "dslide":
            continue
        for name, member in vars(base).items():
            if not name.startswith("_") and (callable(member) or hasattr(member, "__get__")):
                yield name, getattr(cls, name) if isinstance(member, staticmethod | classmethod) else member


def has_docstring(value: Any) -> bool:
    """A docstring someone wrote: not that which dataclasses make, and for a class not that of a base."""
    if not inspect.isclass(value):
        return bool(inspect.getdoc(value))
    text = vars(value).get("__doc__") or ""
    return bool(text) and not (dataclasses.is_dataclass(value) and text.startswith(f"{value.__name__}("))


def test_every_public_name_has_a_docstring() -> None:
    objects = dict(public_objects())
    assert len(objects) > 50
    assert [name for name, value in objects.items() if not has_docstring(value)] == []


def test_missing_docstrings_are_found() -> None:
    class Documented:
        """Documented."""

        def method(self) -> None:
            pass

    class Undocumented(Documented):
        pass

    generated = dataclasses.make_dataclass("generated", ["field"])
    assert has_docstring(Documented)
    assert not any(map(has_docstring, [Undocumented, generated, Documented.method]))


def test_what_can_be_imported_is_what_all_names() -> None:
    """At run time, where names are imported on first use, and for type checkers, which read the imports."""
    everything: dict[str, Any] = {}
    exec("from dslide import *", everything)
    assert set(everything) - {"__builtins__"} == set(dslide.__all__)
    assert set(dslide.__all__) <= set(dir(dslide))
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        dslide.missing  # noqa: B018
    tree = ast.parse(Path(dslide.__file__).read_text())
    checked = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imported = [alias.name for node in ast.walk(checked[0]) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert {*imported, "__version__"} == set(dslide.__all__)


def test_modules_import_each_other_and_not_the_public_api() -> None:
    """`from dslide import Trainer` inside the package would hide which package imports which from import-linter."""
    source = Path(dslide.__file__).parent
    packages = {path.stem for path in source.iterdir()} | {"_core"}
    wrong = [
        f"{path.relative_to(source)}: {alias.name}"
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "dslide"
        for alias in node.names
        if alias.name not in packages
    ]
    assert wrong == []


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    options = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            options.update(*(options_of(command) for command in action.choices.values()))
    return options


@cache
def command_options(command: str) -> set[str]:
    """Options of a `dslide` command and of its subcommands."""
    parser = Parser(prog=command)
    importlib.import_module(f"dslide.cli.{command}").add_arguments(parser)
    return options_of(parser)


@cache
def dslide_options() -> set[str]:
    return {"--version"}.union(*map(command_options, COMMANDS))


@cache
def bench_options() -> set[str]:
    """Options of `python -m bench` and its parts, as their sources write them."""
    added = re.compile(r'add_argument\(\s*"(--[a-z-]+)"')
    return {option for path in ROOT.glob("bench/**/*.py") for option in added.findall(path.read_text())}


def code_of(text: str) -> Iterator[str]:
    """Lines of code blocks and code spans of a page; lines that end with a backslash, and spans over several lines, are
    one."""
    text = text.replace("\\\n", " ")
    fenced = re.compile(r"^```.*?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
    indented = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
    for block in fenced.findall(text) + indented.findall(fenced.sub("", text)):
        yield from block.splitlines()
    for span in re.findall(r"`([^`]+)`", indented.sub("", fenced.sub("", text))):
        yield " ".join(span.split())


def unknown_options(text: str) -> list[str]:
    """Options in code of a page that the command before them does not have; without a command, and in comments, those
    that no command has."""
    word = re.compile(
        rf"(?<![\w./-])dslide (?P<command>{'|'.join(COMMANDS)})\b|python\S* -m (?P<bench>bench)\b"
        rf"|(?<![\w./-])(?P<other>{'|'.join(OTHER_PROGRAMS)})(?= )|(?<![\w-])(?P<flag>--[a-z][\w-]*)|(?P<comment>\s#\s)"
    )
    any_option = dslide_options() | bench_options() | OF_SLURM
    unknown = []
    for line in code_of(text):
        known: set[str] | None = any_option
        for match in word.finditer(line):
            if match["command"]:
                known = command_options(match["command"])
            elif match["bench"]:
                known = bench_options()
            elif match["comment"]:
                known = any_option
            elif match["other"]:
                known = None
            elif known is not None and match["flag"] not in known:
                unknown.append(match["flag"])
    return unknown


def missing_names(text: str) -> list[str]:
    """Dotted names of dslide on a page that cannot be imported."""
    return [name for name in re.findall(r"(?<![\w./-])dslide(?:\.[A-Za-z_]\w*)+", text) if not exists(name)]


def exists(name: str) -> bool:
    value: Any = dslide
    path = "dslide"
    for part in name.split(".")[1:]:
        path += f".{part}"
        if not hasattr(value, part):
            try:
                importlib.import_module(path)
            except ImportError:  # there is none, or it needs an extra
                return path.count(".") == 1 and importlib.util.find_spec(path) is not None
        value = getattr(value, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_and_names_of_the_documentation_exist(page: Path) -> None:
    text = page.read_text()
    assert (unknown_options(text), missing_names(text)) == ([], [])


def test_unknown_options_and_names_are_found() -> None:
    text = "`--epochs` `--no-such`, `mpiexec --hostfile f dslide train d --ranks 2\n--tables 3 --format x` `--quick`\n"
    text += "```\ndslide predict m d --format svm \\\n  --epochs 3\n```\n\n    python -m bench --only a --patience 3\n"
    assert sorted(unknown_options(text)) == ["--epochs", "--no-such", "--patience"]
    assert missing_names("`dslide.Trainer.fit`, dslide.gone, dslide.data.load. dslide.data.gone") == [
        "dslide.gone",
        "dslide.data.gone",
    ]


def test_the_reference_has_every_option_once() -> None:
    shown = re.findall(r"^```\{option-of\} (\w+)$", (ROOT / "docs/reference/options.md").read_text(), re.MULTILINE)
    kinds = (dslide.Config, dslide.data.TextOptions, dslide.data.TokenOptions)
    assert sorted(shown) == sorted(field.name for kind in kinds for field in dataclasses.fields(kind))


def test_the_reference_has_every_public_name_once() -> None:
    page = (ROOT / "docs/reference/python.md").read_text()
    public = {name for module in MODULES for name in importlib.import_module(module).__all__} - {"__version__"}
    source = (Path(dslide.__file__).parent / "ray/__init__.py").read_text()  # can be imported only where Ray is
    of_ray = ast.literal_eval(re.findall(r"^__all__ = (.*)$", source, re.MULTILINE)[0])
    assert sorted(re.findall(r"^\.\. auto\w+:: (\w+)", page, re.MULTILINE)) == sorted([*public, *of_ray])


def test_there_are_options_and_names_to_check() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert len(re.findall(r"--[a-z]", "\n".join(code_of(text)))) > 200
    assert len(re.findall(r"dslide\.[a-zA-Z_]", text)) > 10


def test_files_and_functions_of_the_map_exist() -> None:
    """CONTRIBUTING.md: files and folders, and every function of the walk of a batch."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    folders = ("src", "tests", "bench", "docs", "recipes", "examples", "release")
    paths = {
        f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder, *(ROOT / folder).rglob("*"))
    }
    files = {span.rstrip("/") for span in re.findall(r"`([\w./]+(?:/|\.[ch]pp|\.py))`", text)}
    assert len(files) > 40
    assert [name for name in files if not any(path.endswith(f"/{name}") for path in paths)] == []

    walk = text.partition("## The walk of a batch")[2].partition("\n## ")[0]
    names = {name for span in re.findall(r"`([\w.]+)`", walk) if not span.endswith("pp") for name in span.split(".")}
    assert len(names) > 40
    sources = list((ROOT / "src" / "dslide").rglob("*"))
    code = "\n".join(path.read_text() for path in sources if path.suffix == ".py")
    assert names - set(re.findall(r"(?:def|class) (\w+)", code)) - {path.stem for path in sources} == set()
