"""Text tables with aligned columns, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def plain_table(rows: Sequence[Sequence[str]], align: str = "<") -> list[str]:
    """The rows as lines, columns two spaces apart. `align` has `<` (left) or `>` (right) for each column; columns
    beyond its length take its last character."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad = [str.ljust if side == "<" else str.rjust for side in align.ljust(len(widths), align[-1])]
    return ["  ".join(p(cell, w) for p, cell, w in zip(pad, row, widths, strict=True)).rstrip() for row in rows]
