"""Docstrings of public names: the reference lists all, parameters and results are described, examples are right."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

docscrape = pytest.importorskip("numpydoc.docscrape")

REFERENCE = (Path(__file__).parents[2] / "docs/reference/python.md").read_text()
PACKAGES = ("dslide", "dslide.data", "dslide.comm", "dslide.torch", "dslide.tracking", "dslide.ray")
try:
    importlib.import_module(PACKAGES[-1])
except ImportError:  # Ray is not installed
    PACKAGES = PACKAGES[:-1]
# Methods that a callback may have: the class says what they get.
UNDESCRIBED = ("Callback",)


def listed() -> dict[str, tuple[Any, list[str]]]:
    """The names in the reference with what they stand for and the methods that are listed."""
    found: dict[str, tuple[Any, list[str]]] = {}
    package: Any = None
    lines = REFERENCE.splitlines()
    for number, line in enumerate(lines):
        if match := re.match(r"\.\. currentmodule:: (\S+)", line):
            package = importlib.import_module(match[1]) if match[1] in PACKAGES else None
        elif package and (match := re.match(r"\.\. auto\w+:: (\w+)", line)):
            value = getattr(package, match[1])
            options = "\n".join(lines[number + 1 : number + 3])
            members = re.search(r":members:(.*)", options)
            names = members[1].replace(" ", "").split(",") if members else []
            if names == [""]:
                excluded = re.search(r":exclude-members:(.*)", options)
                hidden = excluded[1].replace(" ", "").split(",") if excluded else []
                names = [name for name in vars(value) if not name.startswith("_") and name not in hidden]
            found[f"{package.__name__}.{match[1]}"] = (value, names)
    return found


def functions() -> Iterator[tuple[str, Any]]:
    """Functions and methods that the reference shows."""
    for name, (value, members) in listed().items():
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value) and value.__name__ not in UNDESCRIBED:
            for member in members:
                method = inspect.getattr_static(value, member)
                method = getattr(method, "__func__", method)
                if inspect.isfunction(method):
                    yield f"{name}.{member}", method


FUNCTIONS = dict(functions())


def lacking(function: Any) -> list[str]:
    """Parameters that the docstring does not describe, and "result" if that is missing."""
    doc = docscrape.FunctionDoc(function)
    described = {name for entry in doc["Parameters"] for name in re.split(r", ", entry.name)}
    if "of `train`" in (inspect.getdoc(function) or ""):  # resume says so
        described |= described_by("dslide.train")
    if "of `load`" in (inspect.getdoc(function) or ""):  # convert does
        described |= described_by("dslide.data.load")
    signature = inspect.signature(function)
    missing = []
    for name, parameter in signature.parameters.items():
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if name not in ("self", "cls") and star + name not in described and not (star and "**options" in described):
            missing.append(name)
    returns = typing.cast(Any, signature.return_annotation)
    if returns not in (None, "None", inspect.Signature.empty) and not doc["Returns"]:
        missing.append("result")
    return missing


def described_by(name: str) -> set[str]:
    """The parameters that another function describes."""
    return {each for entry in docscrape.FunctionDoc(FUNCTIONS[name])["Parameters"] for each in entry.name.split(", ")}


def test_every_public_name_is_in_the_reference():
    public = {f"{package}.{name}" for package in PACKAGES for name in importlib.import_module(package).__all__}
    public.discard("dslide.__version__")
    modules = {name for name in public if inspect.ismodule(getattr(importlib.import_module("dslide"), name[7:], None))}
    values = [value for value, _ in listed().values()]
    missing = [
        name for name in public - modules - set(listed()) if not any(value_of(name) is value for value in values)
    ]
    assert missing == []


def value_of(name: str) -> Any:
    package, _, last = name.rpartition(".")
    return getattr(importlib.import_module(package), last)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_and_result_are_described(name):
    assert lacking(FUNCTIONS[name]) == []


def test_what_is_not_described_is_found():
    def function(one: int, two: int) -> int:
        """Sums.

        Parameters
        ----------
        one : int
        """
        return one + two

    assert lacking(function) == ["two", "result"]


@pytest.mark.parametrize("name", listed())
def test_examples_of_docstrings_are_right(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value, members = listed()[name]
    parts = [value, *(getattr(value, member) for member in members)]
    runner = doctest.DocTestRunner(verbose=False)
    for part in parts:
        for test in doctest.DocTestFinder(recurse=False).find(part, name, globs={}):
            assert runner.run(test).failed == 0


def test_there_are_examples():
    documented = [value for value, _ in listed().values()] + list(FUNCTIONS.values())
    assert sum(">>>" in (inspect.getdoc(value) or "") for value in documented) >= 5
