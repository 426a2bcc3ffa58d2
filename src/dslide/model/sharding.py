"""Which neurons of a layer a rank owns: every R-th of R ranks, beginning with its own number.

Labels are often numbered by popularity, and contiguous ranges would overload one rank. Neuron `local` of rank r is
neuron `local * R + r` of the whole layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from dslide.util.arrays import Ids
from dslide.util.csr import Lists

L = TypeVar("L", bound=Lists)


@dataclass(frozen=True)
class Shard:
    """One rank's share of every layer."""

    rank: int = 0
    size: int = 1

    def count(self, neurons: int) -> int:
        """How many of a layer's neurons are owned."""
        return (neurons - self.rank + self.size - 1) // self.size

    @property
    def own(self) -> slice:
        """The owned neurons out of all."""
        return slice(self.rank, None, self.size)

    def to_global(self, local: Ids) -> Ids:
        """Numbers in the whole layer of owned neurons; negative numbers, which stand for no neuron, stay."""
        if self.size == 1:
            return local
        return np.where(local < 0, local, local * self.size + self.rank).astype(local.dtype)

    def own_part(self, lists: L) -> L:
        """Those elements of lists of neurons that are owned, by local number. (`columns` of SparseRows stays.)"""
        if self.size == 1:
            return lists
        owned = lists.where(lists.indices % self.size == self.rank)
        owned.indices[:] //= self.size  # a copy of its own
        return owned


WHOLE = Shard()


def neuron_axis(array: str, sparse_input: bool) -> int | None:
    """The axis of one of a layer's arrays (`weights`, `bias_moment1`, ...) along which neurons lie; None if the array
    is not by neuron, and the same on every rank."""
    if array.startswith("bias") or not sparse_input:
        return 0
    return None if array == "weights_clock" else 1
