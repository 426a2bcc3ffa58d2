"""bf16, which numpy lacks, as uint16."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dslide.model.storage import widened

UNIT = 2.0**-7  # unit in the last place of a bf16, relative to it, at most
SMALLEST = 2.0**-133  # above 0
STORED = ["float32", "bf16"]


def nearest(x: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """The nearest bf16, ties to even."""
    x = np.asarray(x, np.float32)
    below = (x.view(np.uint32) >> 16).astype(np.uint16)
    above = below + np.uint16(1)
    down, up = (np.abs(widened(neighbour).astype(float) - x) for neighbour in (below, above))
    return np.where((up < down) | ((up == down) & (below % 2 == 1)), above, below).astype(np.uint16)


def stored(x: npt.ArrayLike, storage: str) -> npt.NDArray[np.generic]:
    """A copy of the numbers in one of the two types."""
    return nearest(x) if storage == "bf16" else np.array(x, np.float32)
