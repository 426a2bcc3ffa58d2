"""Items of users as features of a network."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from dslide.data.rows import SparseRows


def item_features(items: SparseRows, counts: NDArray[np.integer]) -> SparseRows:
    """Rows of length 1 in which an item that occurs n times in the training data has weight 1 / sqrt(1 + n): popular
    items say little about a user. `counts` has n for each column."""
    values = 1 / np.sqrt(1.0 + counts[items.indices])
    row_of = items.row_numbers()
    values /= np.sqrt(np.bincount(row_of, values**2, len(items)))[row_of]
    return dataclasses.replace(items, values=values.astype(np.float32))
