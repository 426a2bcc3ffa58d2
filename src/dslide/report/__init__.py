"""Reports on runs: one self-contained HTML page with charts.

from dslide.report import write_report
write_report(["runs/first", "runs/second"], "report.html")
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dslide.errors import ConfigError, DataError
from dslide.report.history import read_run
from dslide.report.page import HEAD, page
from dslide.util.atomic import AtomicFile
from dslide.util.plain import open_plain

__all__ = ["write_report"]


def write_report(runs: Sequence[str | Path], out: str | Path) -> None:
    """Reads the folders of runs and writes the page. An existing report is replaced, any other file is not."""
    if os.path.lexists(out):
        with open_plain(out, DataError) as old:
            if old.read(len(HEAD)) != HEAD.encode():
                raise ConfigError(f"{out}: exists already and is no report; give another --out")
    try:
        with AtomicFile(out, encoding="utf-8", errors="replace") as file:  # names of files need not be valid text
            file.write(page([read_run(run) for run in runs]))
    except OSError as error:
        raise ConfigError(f"{out}: can't be written: {error.strerror}") from None
