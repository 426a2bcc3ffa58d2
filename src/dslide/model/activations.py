"""What passes between layers: `Dense` activations behind a layer that computes all its neurons, `Csr` ones for the
network's input and behind a sampled layer; and activations that are still arriving from other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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


Activations = Dense | Csr


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
