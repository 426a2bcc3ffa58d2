"""Calibration of the output layer: what a logit is worth, by how many training rows its label has, and what labels are
worth that are ranked.

A network is surer of labels that it has seen in few rows than it should be, since it knows these rows by heart. On rows
that it was not trained on, a line is fitted to its logits for each group of labels (training/calibration.py), with a
bend: what is worth most is often worth less than the line says. Logits below those that were fitted keep their
distances: they must not come out in front by extrapolation.

With `ranking = "propensity"` rare labels are worth more than frequent ones. Labels are then ranked by the logarithm of
chance times worth: the chance is the sigmoid of the calibrated logit, or, where labels exclude each other, proportional
to its exponential.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import numpy.typing as npt

from dslide.model.storage import checked
from dslide.util.arrays import Array, Floats

NAME = "calibration"  # of the array among those of a network
# Its columns; of the worth the logarithm. The last is what is added to a logit if all neighbours have the label.
SLOPE, OFFSET, LEAST, KNOT, BEND, WORTH, VOTE = range(7)
NUMBERS = 7
IDENTITY = (1.0, 0.0, float(np.finfo(np.float32).min), 0.0, 0.0, 0.0, 0.0)
DTYPE = np.dtype(np.float32)


def on_lines(logits: Array, slope: Array, offset: Array, least: Array, knot: Array, bend: Array) -> Array:
    """What lines make of logits: below the least one the slope is 1; above the knot the bend is added to it."""
    inside = np.maximum(logits, least)
    return np.asarray(slope * inside + offset + (logits - inside) + bend * np.maximum(logits - knot, 0))


class Calibration:
    """The calibration of own labels: slope, offset, least logit, knot, bend, worth and vote of each, (labels,
    7).
    `exclusive` labels share a row's probability. It belongs to the weights for which it was fitted: training resets
    it."""

    def __init__(self, labels: int, exclusive: bool, arrays: Mapping[str, Array] | None = None) -> None:
        self._exclusive = exclusive
        if arrays is None:
            self.array: Array = np.tile(np.array(IDENTITY, DTYPE), (labels, 1))
        else:
            self.array = checked(arrays, NAME, DTYPE, (labels, NUMBERS))
        self._look()

    @classmethod
    @cache
    def none(cls) -> Calibration:
        """With which scores are logits, of any labels."""
        return cls(0, exclusive=False)

    def _look(self) -> None:
        lines = (SLOPE, OFFSET, BEND)
        self._has_lines = bool((self.array[:, lines] != [IDENTITY[column] for column in lines]).any())
        self._has_worth = bool(self.array[:, WORTH].any())

    @property
    def is_identity(self) -> bool:
        """Whether scores are logits."""
        return not (self._has_lines or self._has_worth)

    @property
    def native(self) -> tuple[Array | None, bool]:
        """What native prediction takes: the array, if it changes anything, and whether chances are sigmoids."""
        return None if self.is_identity else self.array, self._has_worth and not self._exclusive

    def set_lines(self, lines: npt.NDArray[np.floating]) -> None:
        """Sets slope, offset, least logit, knot and bend of each own label, (labels, 5)."""
        self.array[:, :WORTH] = lines
        self._look()

    def set_votes(self, votes: npt.NDArray[np.floating]) -> None:
        """Sets what the votes of a row's neighbours (neighbours.py) count for each own label."""
        self.array[:, VOTE] = votes

    def set_worth(self, worth: npt.NDArray[np.floating]) -> None:
        """Sets what each own label is worth."""
        self.array[:, WORTH] = np.log(worth)
        self._look()

    def reset(self) -> None:
        """Scores are logits."""
        if not self.is_identity or self.array[:, VOTE].any():
            self.array[...] = IDENTITY
            self._look()

    def logits(self, logits: Floats, own: npt.NDArray[np.integer]) -> Floats:
        """Calibrated logits of some own labels: (rows, len(own))."""
        if not self._has_lines:
            return logits
        return on_lines(logits, *self.array[own, :WORTH].T)

    def scores(self, logits: Floats, own: npt.NDArray[np.integer]) -> Floats:
        """What some own labels are ranked by: (rows, len(own)). As native prediction."""
        z = self.logits(logits, own)
        if not self._has_worth:
            return z
        chances = z if self._exclusive else -np.logaddexp(0, -z)
        return np.asarray(chances + self.array[own, WORTH], np.float32)
