"""Which neurons of a layer a rank owns. Of R ranks with equal shares each owns every R-th, beginning with its own
number. With shares such as 2 and 1, of every 3 neurons the first rank owns the first two and the second the third.

Labels are often numbered by popularity, and contiguous ranges would overload one rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dslide.comm import Communicator
from dslide.errors import ConfigError, known_to_all
from dslide.util.csr import Lists

MOST_SHARE = 64  # the core works on blocks of whole shares (runtime/stripe.hpp)

L = TypeVar("L", bound=Lists)
N = TypeVar("N", bound=np.integer[Any])


@dataclass(frozen=True)
class Shard:
    """One rank's share of every layer. `shares`: out of as many neurons as all shares together each rank owns as many
    as its own; empty: one each."""

    rank: int = 0
    size: int = 1
    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.shares) not in (0, self.size) or any(share < 1 for share in self.shares):
            raise ValueError(f"{self.size} shares of 1 or more are needed, not {self.shares}")
        divisor = math.gcd(*self.shares)
        reduced = tuple(share // divisor for share in self.shares)
        object.__setattr__(self, "shares", reduced if set(reduced) != {1} else ())

    @classmethod
    def of(cls, comm: Communicator) -> Shard:
        """That of this rank."""
        return cls(comm.rank, comm.size, comm.shares)

    def of_rank(self, rank: int) -> Shard:
        """That of another rank of the same job."""
        return Shard(rank, self.size, self.shares)

    @property
    def every(self) -> list[int]:
        """The shares of all ranks."""
        return list(self.shares or (1,) * self.size)

    @property
    def fraction(self) -> Fraction:
        """The part of the network that is owned."""
        _, step, width = self.stripe
        return Fraction(width, step)

    @cached_property
    def stripe(self) -> tuple[int, int, int]:
        """The first neuron owned, after how many it repeats, and how many are owned of these."""
        if not self.shares:
            return self.rank, self.size, 1
        return sum(self.shares[: self.rank]), sum(self.shares), self.shares[self.rank]

    def check(self, neurons: int, what: str) -> None:
        """ConfigError if a rank would own none of so many neurons."""
        if not all(self.of_rank(rank).count(neurons) for rank in range(self.size)):
            how = f" with shares of {', '.join(map(str, self.shares))}" if self.shares else ""
            raise known_to_all(
                ConfigError(f"{neurons} {what} can't be split over {self.size} ranks{how}; use fewer ranks")
            )

    def count(self, neurons: int) -> int:
        """How many of a layer's neurons are owned."""
        first, step, width = self.stripe
        return neurons // step * width + min(width, max(0, neurons % step - first))

    def owns(self, ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
        """Which neurons, by their numbers in the whole layer, are owned."""
        first, step, width = self.stripe
        place = ids % step
        if width == 1:
            owned: npt.NDArray[np.bool_] = place == first
            return owned
        return (place >= first) & (place < first + width)

    def to_local(self, ids: npt.NDArray[N]) -> npt.NDArray[N]:
        """Numbers among own neurons of owned ones, by their numbers in the whole layer."""
        first, step, width = self.stripe
        local = ids // step if width == 1 else ids // step * width + ids % step - first
        return local.astype(ids.dtype, copy=False)

    def to_global(self, local: npt.NDArray[N]) -> npt.NDArray[N]:
        """Numbers in the whole layer of owned neurons; negative numbers, which stand for no neuron, stay."""
        if self.size == 1:
            return local
        first, step, width = self.stripe
        return np.where(local < 0, local, local // width * step + first + local % width).astype(local.dtype)

    def numbers(self, count: int) -> npt.NDArray[np.int64]:
        """The numbers in the whole layer of the first `count` owned neurons."""
        first, step, width = self.stripe
        local = np.arange(count)
        return local // width * step + first + local % width

    def part(self, every: npt.NDArray[Any], axis: int = 0) -> npt.NDArray[Any]:
        """The owned ones of all neurons, which lie along an axis: a view if shares are equal, else a copy."""
        first, step, width = self.stripe
        if width == 1:
            return every[(slice(None),) * axis + (slice(first, None, step),)]
        return every.take(self.numbers(self.count(every.shape[axis])), axis)

    def own_part(self, lists: L) -> L:
        """Those elements of lists of neurons that are owned, by local number. (`columns` of SparseRows stays.)"""
        if self.size == 1:
            return lists
        owned = lists.where(self.owns(lists.indices))
        owned.indices[:] = self.to_local(owned.indices)  # a copy of its own
        return owned

    def overlaps(self, other: Shard) -> bool:
        """Whether a neuron of a layer that is large enough is owned by both, shards of jobs with different shares."""
        (begin, mine, width), (others_begin, theirs, others_width) = self.stripe, other.stripe
        divisor = math.gcd(mine, theirs)
        places = {place % divisor for place in range(begin, begin + min(width, divisor))}
        return not places.isdisjoint(place % divisor for place in range(others_begin, others_begin + others_width))

    def common(self, other: Shard) -> list[tuple[int, int]]:
        """Neurons that both own: each pair (first, step) stands for first, first + step, ..."""
        begin, mine, width = self.stripe
        others_begin, theirs, others_width = other.stripe
        divisor = math.gcd(mine, theirs)
        found = []
        for first in range(begin, begin + width):
            for others in range(others_begin, others_begin + others_width):
                if (others - first) % divisor == 0:
                    # the first neuron `first` + mine * k that is `others` modulo theirs
                    k = (others - first) // divisor * pow(mine // divisor, -1, theirs // divisor) % (theirs // divisor)
                    found.append((first + mine * k, mine * theirs // divisor))
        return found

    def local_slice(self, first: int, step: int, neurons: int) -> slice:
        """The local numbers of first, first + step, ... out of so many neurons, where `step` is a multiple of what the
        shard repeats after."""
        begin, own_step, width = self.stripe
        count = len(range(first, neurons, step))
        start, stride = first // own_step * width + first % own_step - begin, step // own_step * width
        return slice(start, start + count * stride, stride)


WHOLE = Shard()


def neuron_axis(array: str, sparse_input: bool) -> int | None:
    """The axis of one of a layer's arrays (`weights`, `bias_moment1`, ...) along which neurons lie; None if the array
    is not by neuron, and the same on every rank."""
    if array.startswith("bias") or not sparse_input:
        return 0
    return None if array == "weights_clock" else 1
