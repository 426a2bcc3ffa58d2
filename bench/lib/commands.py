"""The dslide command line, and the files that its runs leave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]  # a line of log.jsonl


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Options by their names in Config and TOML, as arguments of the command line."""
    arguments = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{option}" if value else f"--no-{option}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, tuple | list) else value
            arguments.append(f"--{option}={text}")
    return arguments


def read_summary(run: Path) -> dict[str, Any]:
    """The summary in the folder of a run."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def read_records(path: Path) -> list[Record]:
    """The objects of a file of JSON lines; empty if there is no file. Lines that a fault has cut off are left out."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found
