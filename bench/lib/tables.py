"""Tables in markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in markdown; vertical bars in cells are escaped."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], ["---"] * len(header), *lines[1:]))
