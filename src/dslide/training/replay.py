"""How many rows of earlier data are trained on again beside new ones, from what the new ones have.

New rows alone make a network believe that what they have is frequent. That matters as far as their labels are others
than those of earlier rows. New labels have most of their rows among the new ones, and are far more frequent there than
before. They may be a larger share of what is trained on than of all rows by `EXCESS` at most: as many earlier rows as
that takes are trained on again. Rows that are like the earlier ones need none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.integer]

EXCESS = 0.15  # docs/guide/growing.md has what it was chosen by
TIMES = 3  # as frequent in new rows as in earlier ones new labels are, at least


def share_of_new(new_counts: Counts, counts: Counts, new_rows: int, rows: int) -> float:
    """The share of the new rows' labels that are new ones, each counted as often as it occurs. `counts` of labels and
    `rows` are of earlier and new rows together."""
    earlier, factor = counts - new_counts, max(1.0, TIMES * new_rows / max(1, rows - new_rows))
    return float(new_counts[new_counts >= factor * earlier].sum() / max(1, new_counts.sum()))


def fade(new_counts: Counts, counts: Counts, new_rows: int, rows: int) -> bool:
    """Whether new rows alone have too much of new labels."""
    return share_of_new(new_counts, counts, new_rows, rows) * (1 - new_rows / max(1, rows)) > EXCESS


def replayed_rows(new_counts: Counts, counts: Counts, new_rows: int, rows: int) -> int:
    """How many earlier rows to train on beside new ones: with r for each new one, of which a share s has new labels,
    these are s / (1 + r) of what is trained on, and s new_rows / rows of all."""
    if not fade(new_counts, counts, new_rows, rows):
        return 0
    most = new_rows / rows + EXCESS / share_of_new(new_counts, counts, new_rows, rows)
    return round(new_rows * (1 / most - 1))
