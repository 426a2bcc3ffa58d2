"""The width of the terminal that shows what a rank prints: it is its launcher's terminal, not the rank's."""

from __future__ import annotations

import os
from typing import TextIO

TERMINAL = "DSLIDE_TERMINAL"  # variable that a launcher sets for its ranks, if its stderr is a terminal


def columns_variable(stream: TextIO) -> dict[str, str]:
    """The variable by which ranks know the columns of a launcher's stream; none if that is no terminal."""
    return {TERMINAL: str(os.get_terminal_size(stream.fileno()).columns or 80)} if stream.isatty() else {}


def launcher_columns() -> int:
    """Columns of the terminal to which the launcher writes what this rank prints; 0 if there is none."""
    return int(os.environ.get(TERMINAL, 0))
