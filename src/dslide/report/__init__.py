"""Reports on runs: one self-contained HTML page with charts.

from dslide.report import write_report
write_report(["runs/first", "runs/second"], "report.html")
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from dslide.errors import ConfigError, DataError
from dslide.report.history import read_run
from dslide.report.page import HEAD, page
from dslide.util.json_files import open_plain

__all__ = ["write_report"]


def write_report(runs: Sequence[str | Path], out: str | Path) -> None:
    """Reads the folders of runs and writes the page. An existing report is replaced, any other file is not."""
    target = Path(out)
    _check_target(target)
    partial = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    try:
        # file names need not be valid text
        with open(partial, "x", encoding="utf-8", errors="replace") as file:
            file.write(page([read_run(run) for run in runs]))
        partial.replace(target)
    except OSError as error:
        raise ConfigError(f"{out}: can't be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)


def _check_target(target: Path) -> None:
    """ConfigError if the target exists and is not a report."""
    if not os.path.lexists(target):
        return
    with open_plain(target, DataError) as file:
        if file.read(len(HEAD)) != HEAD.encode():
            raise ConfigError(f"{target}: exists already and is no report; give another --out")
