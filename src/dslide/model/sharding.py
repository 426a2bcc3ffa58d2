"""Which neurons of a layer a rank owns: every `size`-th, from `rank` on.

Neurons are dealt out like cards because labels are often numbered by popularity: ranges would load one rank. Neuron
`local` of rank r is neuron `local * size + r` of the whole layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dslide.model.activations import Floats, Ids, Offsets


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
        """The owned ones out of all neurons."""
        return slice(self.rank, None, self.size)

    def whole(self, local: Ids) -> Ids:
        """Numbers in the whole layer of owned neurons; negative ones, which stand for nothing, stay."""
        if self.size == 1:
            return local
        return np.where(local < 0, local, local * self.size + self.rank).astype(local.dtype)

    def owned_lists(self, offsets: Offsets, ids: Ids, values: Floats) -> tuple[Offsets, Ids, Floats]:
        """What CSR lists of neurons say of owned ones, by local number."""
        if self.size == 1:
            return offsets, ids, values
        keep = ids % self.size == self.rank
        before = np.concatenate([[0], np.cumsum(keep, dtype=np.int64)])
        return before[offsets], ids[keep] // self.size, values[keep]


WHOLE = Shard()


def neuron_axis(array: str, sparse_input: bool) -> int | None:
    """The axis of one of a layer's arrays (`weights`, `bias_moment1`, ...) along which neurons lie; None if the array
    says nothing of single neurons and is the same on every rank."""
    if array.startswith("bias") or not sparse_input:
        return 0
    return None if array == "weights_clock" else 1
