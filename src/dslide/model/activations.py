"""What runs between layers: `Dense` activations (rows x padded width) behind a layer that is computed in full, `Sparse`
ones (CSR) for the network's input and behind a sampled layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
ALIGNMENT = 64  # bytes; also what a row of floats is padded to, so that every row begins a cache line


def padded(width: int) -> int:
    """The numbers, floats or not, that a row of `width` has room for in memory."""
    lanes = ALIGNMENT // 4
    return -(-width // lanes) * lanes


def aligned_zeros(rows: int, columns: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Zeros that begin at a cache line; memory is taken from the system only where it is written to."""
    return _aligned(np.zeros, rows, columns, dtype)


def aligned_records(rows: int, columns: int, dtypes: Sequence[npt.DTypeLike]) -> list[npt.NDArray[Any]]:
    """Arrays of zeros (rows, columns), one of each type. In memory the first rows of all of them lie side by side, then
    the second ones, and so on: what belongs together is read and written together."""
    sizes = [columns * np.dtype(dtype).itemsize for dtype in dtypes]
    ends = np.cumsum(sizes).tolist()
    records = aligned_zeros(rows, ends[-1], np.uint8)
    return [records[:, end - size : end].view(dtype) for end, size, dtype in zip(ends, sizes, dtypes, strict=True)]


def aligned_empty(rows: int, columns: int) -> Floats:
    """The same with whatever is there."""
    return _aligned(np.empty, rows, columns, np.float32)


def _aligned(
    make: Callable[[int, npt.DTypeLike], npt.NDArray[Any]], rows: int, columns: int, dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    size = rows * columns * np.dtype(dtype).itemsize
    raw = make(size + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT  # raw.ctypes.data would take ten times as long
    return raw[start : start + size].view(dtype).reshape(rows, columns)


@dataclass(frozen=True)
class Dense:
    """Activations of all neurons of a layer."""

    values: Floats  # rows x padded(width), zero beyond width

    @property
    def rows(self) -> int:
        return len(self.values)

    def part(self, begin: int, end: int) -> Dense:
        """Some of the rows."""
        return Dense(self.values[begin:end])


@dataclass(frozen=True)
class Sparse:
    """Sparse rows: the network's input, or the activations of a sampled layer."""

    offsets: Offsets  # rows + 1
    ids: Ids  # each at most once in a row, ascending
    values: Floats

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    def part(self, begin: int, end: int) -> Sparse:
        """Some of the rows."""
        if (begin, end) == (0, self.rows):
            return self
        offsets = self.offsets[begin : end + 1]
        inside = slice(offsets[0], offsets[-1])
        return Sparse(offsets - offsets[0], self.ids[inside], self.values[inside])

    def without_zeros(self) -> Sparse:
        """The same rows without elements of value 0."""
        keep = self.values != 0
        before = np.concatenate([[0], np.cumsum(keep, dtype=np.int64)])
        return Sparse(before[self.offsets], self.ids[keep], self.values[keep])

    @classmethod
    def from_matrix(cls, z: Floats) -> Sparse:
        """The elements of a matrix that are not 0."""
        rows, columns = np.nonzero(z)
        offsets = np.searchsorted(rows, np.arange(len(z) + 1)).astype(np.int64)
        return cls(offsets, columns.astype(np.int32), np.ascontiguousarray(z[rows, columns]))


Activations = Dense | Sparse
