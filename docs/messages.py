"""Collects the error messages of dslide from its sources, for the reference and for tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dslide

PACKAGE = Path(dslide.__file__).parent
KINDS = {  # errors, and functions that print a message or raise one
    "UserError", "ConfigError", "DataError", "ModelError", "MemoryNeeded", "Diverged", "Terminated", "CommError",
    "LabError", "BadRequest", "ArgumentTypeError", "ImportError", "warn", "_warn", "error", "_fail", "_give_up",
}  # fmt: skip
GAP = "…"  # stands for a name, a number or other text


def messages() -> dict[str, list[str]]:
    """By the path of a module the messages of errors that it raises, in the order of the file."""
    found = {
        path.relative_to(PACKAGE).as_posix(): list(dict.fromkeys(_messages_of(path)))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    return {name: texts for name, texts in found.items() if texts}


def _messages_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and _name(node.func) in KINDS:
            texts = (_without_gaps_in_a_row(_text(argument)).strip() for argument in node.args)
            # Others only pass a message on; a request's comes after its status.
            yield from (text for text in texts if re.search(r"[a-z]{2,} .*[a-z]{2,}", text.replace(GAP, "")))


def _without_gaps_in_a_row(text: str) -> str:
    return re.sub(rf"{GAP}(\s*{GAP})+", GAP, text)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _text(node: ast.expr) -> str:
    """A message as text, with gaps for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return GAP


FAMILIES = {  # names of modules and folders; the longest that fits counts
    "data": ("data/", "training/reading.py", "training/inference.py", "planner/"),
    "options": ("config.py", "cli/", "model/hash_parameters.py", "training/evaluation.py", "training/autotune.py",
                "util/units.py"),
    "runs": ("api.py", "training/", "util/atomic.py"),
    "models": ("checkpoint/", "model/", "training/export.py", "training/predictions.py", "training/explanations.py"),
    "scikit-learn": ("sklearn/",),
    "machines": ("comm/", "ray/", "launch/", "cli/ranks.py", "cli/doctor.py", "cli/doctor_ranks.py"),
    "reports and serving": ("report/", "serve/", "training/tensorboard.py", "cli/serve.py", "tracking/"),
    "netlab": ("netlab/", "cli/netlab.py"),
    "other": ("",),
}  # fmt: skip


def family(module: str) -> str:
    """The family of a module's messages."""
    fitting = ((len(part), name) for name, parts in FAMILIES.items() for part in parts if module.startswith(part))
    return max(fitting)[1]


def messages_of(name: str) -> list[str]:
    """The messages of a family, without repetition, by alphabet."""
    found = {text for module, texts in messages().items() if family(module) == name for text in texts}
    return sorted(found, key=lambda text: re.sub(r"[^a-z ]", "", text.lower()).strip())


def sentences() -> set[str]:
    """All texts in the sources, with gaps: errors, and what else is printed."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree))
    kinds = (ast.Constant, ast.JoinedStr, ast.BinOp)
    return {_without_gaps_in_a_row(_text(node)) for node in nodes if isinstance(node, kinds)}
