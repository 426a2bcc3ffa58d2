"""What passes between layers: `Dense` activations behind a layer that computes all its neurons, `Csr` ones behind a
sampled layer; either, or both, for the network's input; and activations that are still arriving from other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dslide.comm.future import Future
from dslide.util.arrays import Floats
from dslide.util.csr import Csr


@dataclass(frozen=True)
class Dense:
    """Activations of all neurons of a layer."""

    values: Floats  # (rows, padded(width)), zero beyond width

    @property
    def rows(self) -> int:
        return len(self.values)

    def part(self, begin: int, end: int) -> Dense:
        """Rows begin to end."""
        return Dense(self.values[begin:end])


@dataclass(frozen=True)
class Mixed:
    """Rows of a network whose features are sparse but for the last `width` ones, which are dense."""

    sparse: Csr
    dense: Dense  # (rows, padded width)
    width: int

    @property
    def rows(self) -> int:
        return self.dense.rows

    def part(self, begin: int, end: int) -> Mixed:
        """Rows begin to end."""
        return Mixed(self.sparse.part(begin, end), self.dense.part(begin, end), self.width)


Activations = Dense | Csr
Input = Activations | Mixed  # of a network


def sparse_rows(x: Input) -> Csr:
    """The sparse features of a network's input, which a label prior scores."""
    if isinstance(x, Mixed):
        return x.sparse
    assert isinstance(x, Csr)
    return x


def sparse_elements(x: Input, width: int) -> Csr:
    """Activations of a layer of `width` inputs in sparse form."""
    if isinstance(x, Dense):
        return Csr.from_dense(x.values[:, :width])
    if isinstance(x, Csr):
        return x
    dense = Csr.from_dense(x.dense.values[:, : x.width])
    shifted = Csr(dense.indptr, dense.indices + np.int32(width - x.width), dense.values)
    sparse = Csr(x.sparse.indptr, x.sparse.indices, x.sparse.values)
    return Csr.side_by_side([sparse, shifted])


class Arriving:
    """Activations of a batch on their way from the ranks that computed them, in parts of some rows."""

    def __init__(self, whole: Activations, parts: Sequence[tuple[int, int, Future[None]]] = ()) -> None:
        """`parts`: first row, end, and the all-gather that fills these rows of `whole`; none: all is there."""
        self._whole, self._parts = whole, parts

    def parts(self) -> Iterator[tuple[int, Activations]]:
        """Each part with its first row, as soon as it has arrived."""
        if not self._parts:
            yield 0, self._whole
        for begin, end, gather in self._parts:
            gather.wait()
            yield begin, self._whole.part(begin, end)

    def wait(self) -> Activations:
        """The activations of the whole batch."""
        for _, _, gather in self._parts:
            gather.wait()
        return self._whole
