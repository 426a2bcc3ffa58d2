"""Calibration of the output layer: what a logit is worth, by how many training rows its label has.

A network is surer of labels that it has seen in few rows than it should be, since it knows these rows by heart. On rows
that it was not trained on, a line is fitted to its logits for each group of labels (training/calibration.py). Logits
below those that were fitted keep their distances: they must not come out in front by extrapolation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dslide.model.storage import checked
from dslide.util.arrays import Array, Floats

NAME = "calibration"  # of the array among those of a network
SLOPE, OFFSET, LEAST = range(3)  # its columns
IDENTITY = (1.0, 0.0, float(np.finfo(np.float32).min))
DTYPE = np.dtype(np.float32)


class Calibration:
    """The calibration of own labels: slope, offset and least logit of each, (labels, 3). It belongs to the weights for
    which it was fitted: training resets it."""

    def __init__(self, labels: int, arrays: Mapping[str, Array] | None = None) -> None:
        if arrays is None:
            self.array: Array = np.tile(np.array(IDENTITY, DTYPE), (labels, 1))
        else:
            self.array = checked(arrays, NAME, DTYPE, (labels, 3))
        self.is_identity = arrays is None or bool((self.array[:, :LEAST] == IDENTITY[:LEAST]).all())

    @property
    def native(self) -> Array | None:
        """What native prediction takes; None if it changes nothing."""
        return None if self.is_identity else self.array

    def set(self, numbers: Floats) -> None:
        """Sets slope, offset and least logit of each own label."""
        self.array[...] = numbers
        self.is_identity = False

    def reset(self) -> None:
        """Logits stay what they are."""
        if not self.is_identity:
            self.array[...] = IDENTITY
            self.is_identity = True

    def apply(self, logits: Floats, own: npt.NDArray[np.integer]) -> Floats:
        """Calibrated logits of some own labels: (rows, len(own))."""
        if self.is_identity:
            return logits
        slope, offset, least = self.array[own].T
        inside = np.maximum(logits, least)
        return np.asarray(slope * inside + offset + (logits - inside), np.float32)
