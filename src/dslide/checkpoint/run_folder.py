"""The checkpoints in the folder of a run.

RUN/checkpoints/step-000001234/   a model folder, complete if it has a manifest
RUN/checkpoints/latest            the name of the newest that is complete
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from dslide.checkpoint.manifest import MANIFEST
from dslide.errors import ModelError
from dslide.util.plain import is_plain_folder, read_plain

CHECKPOINTS, LATEST = "checkpoints", "latest"
LONGEST_LATEST = 100  # bytes
_NAME = re.compile(r"step-([0-9]{9,18})", re.ASCII)


def checkpoint_name(step: int) -> str:
    """The name of the folder of a checkpoint after so many steps."""
    return f"step-{step:09}"


def steps_of(name: str) -> int | None:
    """The number of steps in the name of a checkpoint's folder; None if it is not such a name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def folders(place: Path) -> list[Path]:
    """The folders of checkpoints in RUN/checkpoints, complete or not, by their steps, ascending; none if that is not
    there. ModelError if it or one of them is a link, which may lead out of the run, or can't be read."""
    if not is_plain_folder(place, ModelError):
        return []
    try:
        found = sorted((steps, name) for name in os.listdir(place) if (steps := steps_of(name)) is not None)
    except OSError as error:
        raise ModelError(f"{place}: can't be read: {error.strerror}") from None
    return [place / name for _, name in found if is_plain_folder(place / name, ModelError)]


def checkpoints(run: str | Path) -> dict[int, Path]:
    """The run's complete checkpoints on this disk by their steps, ascending; ModelError as `folders` raises it."""
    complete = [path for path in folders(Path(run) / CHECKPOINTS) if os.path.lexists(path / MANIFEST)]
    return {steps: path for path in complete if (steps := steps_of(path.name)) is not None}


def newest(run: str | Path) -> Path | None:
    """The run's newest complete checkpoint on this disk: the one that `latest` names, else the one of most steps.
    ModelError if `latest` is not a regular file."""
    complete = {path.name: path for path in checkpoints(run).values()}
    latest = Path(run) / CHECKPOINTS / LATEST
    named = ""
    if complete and os.path.lexists(latest):
        named = read_plain(latest, ModelError, LONGEST_LATEST).decode("ascii", "replace").strip()
    return complete.get(named) or next(reversed(complete.values()), None)
