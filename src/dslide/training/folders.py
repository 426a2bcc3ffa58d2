"""Folders of runs: which one a new run gets, and whether a run may use it."""

from __future__ import annotations

from pathlib import Path

from dslide.errors import ConfigError, ModelError


def free_folder(data: str) -> Path:
    """The first of runs/NAME-1, runs/NAME-2, ... that does not exist, NAME being that of the data."""
    name = Path(data).name.split(".")[0] or "data"
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


def check_folder(folder: Path, resume: bool) -> None:
    """ConfigError if the folder of a new run exists, ModelError if that of a run to resume does not."""
    if resume and not folder.is_dir():
        raise ModelError(f"{folder}: there is no such run to resume")
    if not resume and folder.exists():
        raise ConfigError(
            f"{folder}: exists already; give another --out, or --resume {folder} to resume it (in Python, "
            "resume_existing=True)"
        )
