"""Folders of runs: which one a new run gets, and whether a run may use it."""

from __future__ import annotations

from pathlib import Path

from dslide.checkpoint.run_folder import checkpoints
from dslide.errors import ConfigError, ModelError
from dslide.training.run_lock import RunLock


def free_folder(data: str) -> Path:
    """The first of runs/NAME-1, runs/NAME-2, ... that does not exist, NAME being that of the data."""
    name = Path(data).name.split(".")[0] or "data"
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


def lock_folder(folder: Path, new: bool | None, wait: float = 0.0) -> RunLock:
    """The lock of a run's folder. It exists if `new` is None; else it is made: if it is to be `new`, ConfigError if it
    exists, and in any case if another process has trained in it meanwhile."""
    if new is not None:
        try:
            folder.mkdir(parents=True, exist_ok=not new)
        except FileExistsError:
            check_folder(folder, resume=False)
        except OSError as error:
            raise ConfigError(f"{folder}: can't be made: {error.strerror}") from None
    lock = RunLock(folder, wait)
    if new is not None and checkpoints(folder):
        lock.release()
        raise ConfigError(f"{folder}: was begun by another process in the meantime; give the command again")
    return lock


def check_folder(folder: Path, resume: bool) -> None:
    """ConfigError if the folder of a new run exists, ModelError if that of a run to resume does not."""
    if resume and not folder.is_dir():
        raise ModelError(f"{folder}: there is no such run to resume")
    if not resume and folder.exists():
        raise ConfigError(
            f"{folder}: exists already; give another --out, or --resume {folder} to resume it (in Python, "
            "resume_existing=True)"
        )
