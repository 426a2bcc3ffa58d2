"""The arrays of neighbours (neighbours.py) among those of a network: their types and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide.util.arrays import Array, padded
from dslide.util.csr import indptr_of

Arrays = dict[str, Array]

MOST_ROWS = 1 << 18  # training rows that are kept, a random choice if there are more: 64 MB of 256 hidden units

TYPES: dict[str, np.dtype[Any]] = {
    "vector": np.dtype(np.int8),
    "scale": np.dtype(np.float32),
    "begin": np.dtype(np.int64),
    "label": np.dtype(np.int32),
    "cell": np.dtype(np.int64),
    "centre": np.dtype(np.float32),
    "power": np.dtype(np.float32),
}
NONE: Arrays = {name: np.zeros(0, dtype) for name, dtype in TYPES.items()}  # the arrays if there are no neighbours


def neighbour_bytes(rows: int, labels_per_row: float, hidden: int) -> int:
    """Memory of the arrays for so many training rows, without the centres of cells."""
    return round(min(rows, MOST_ROWS) * (padded(hidden) + 12 + 4 * labels_per_row))


def sizes(arrays: Mapping[str, Array], stride: int) -> dict[str, int]:
    """The lengths that the arrays must have, by where the labels of rows begin and hidden vectors of so many numbers;
    all 0 without any."""
    begin = arrays["begin"]
    if len(begin) == 0:
        return dict.fromkeys(TYPES, 0)
    rows, cells = len(begin) - 1, max(0, len(arrays["cell"]) - 1)
    return {
        "vector": rows * stride, "scale": rows, "begin": rows + 1, "label": max(0, int(begin[-1])),
        "cell": cells + 1, "centre": cells * stride, "power": 1,
    }  # fmt: skip


def only_labels(arrays: Mapping[str, Array], number: npt.NDArray[np.integer]) -> Arrays:
    """The arrays with labels numbered anew, `number` by label; those of -1 are removed."""
    if len(arrays["begin"]) == 0:
        return NONE
    renamed = number[arrays["label"]]
    stays = renamed >= 0
    return {**arrays, "begin": indptr_of(stays)[arrays["begin"]], "label": renamed[stays].astype(np.int32)}
