"""How many rows of earlier data are trained on again beside new ones, from what the new ones have.

New rows alone make a network believe that what they have is frequent. That matters as far as their labels are others
than those of all rows. So the share of new labels, those most of whose rows are new, may be larger in what is trained
on than in all rows by `EXCESS` at most; as many earlier rows as that takes are trained on again. Rows that are like the
earlier ones need none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.integer]

EXCESS = 0.15  # docs/guide/growing.md has what it was chosen by


def mostly_new(new_counts: Counts, counts: Counts) -> npt.NDArray[np.bool_]:
    """[labels]: which have most of their rows among the new ones. `counts`: in earlier and new rows."""
    return np.asarray(2 * new_counts >= counts)


def share_of_new(new_counts: Counts, counts: Counts) -> float:
    """The share of the new rows' labels that are new ones, each counted as often as it occurs."""
    return float(new_counts[mostly_new(new_counts, counts)].sum() / max(1, new_counts.sum()))


def fade(new_counts: Counts, counts: Counts, new_rows: int, rows: int) -> bool:
    """Whether new rows alone have too much of new labels. `rows`: earlier and new ones."""
    return share_of_new(new_counts, counts) * (1 - new_rows / max(1, rows)) > EXCESS


def replayed_rows(new_counts: Counts, counts: Counts, new_rows: int, rows: int) -> int:
    """How many earlier rows to train on beside new ones: with r for each new one, of which a share s has new labels,
    these are s / (1 + r) of what is trained on, and s new_rows / rows of all."""
    if not fade(new_counts, counts, new_rows, rows):
        return 0
    most = new_rows / rows + EXCESS / share_of_new(new_counts, counts)
    return round(new_rows * (1 / most - 1))
