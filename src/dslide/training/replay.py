"""How many rows of earlier data are trained on again beside new ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.integer]

REPLAYED = 1.0


def replayed_rows(new_counts: Counts, counts: Counts, new_rows: int, rows: int) -> int:
    """x"""
    return round(REPLAYED * new_rows)
