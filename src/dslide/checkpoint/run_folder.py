"""The checkpoints in the folder of a run.

RUN/checkpoints/step-000001234/   a model folder, complete if it has a manifest
RUN/checkpoints/latest            the name of the newest that is complete
"""

from __future__ import annotations

import re
from pathlib import Path

from dslide.checkpoint.manifest import MANIFEST

CHECKPOINTS, LATEST = "checkpoints", "latest"
_NAME = re.compile(r"step-([0-9]{9,18})")


def checkpoint_name(step: int) -> str:
    """The name of the folder of a checkpoint after so many steps."""
    return f"step-{step:09}"


def steps_of(name: str) -> int | None:
    """The number of steps in the name of a checkpoint's folder; None if it is not such a name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def checkpoints(run: str | Path) -> dict[int, Path]:
    """The run's complete checkpoints on this disk by their steps, ascending."""
    try:
        complete = [path for path in (Path(run) / CHECKPOINTS).iterdir() if (path / MANIFEST).is_file()]
    except OSError:
        return {}
    return dict(sorted((steps, path) for path in complete if (steps := steps_of(path.name)) is not None))


def newest(run: str | Path) -> Path | None:
    """The run's newest complete checkpoint on this disk: the one that `latest` names, else the one of most steps."""
    complete = {path.name: path for path in checkpoints(run).values()}
    try:
        named = (Path(run) / CHECKPOINTS / LATEST).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        named = ""
    return complete.get(named) or next(reversed(complete.values()), None)
