"""Rows of different lengths in compressed sparse row (CSR) form, with scipy's names: row i is
`indices[indptr[i]:indptr[i + 1]]`. scipy itself is not used: it would copy int32 indices to match an int64 indptr."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dslide import _core
from dslide.util.arrays import Floats, Ids, Offsets

L = TypeVar("L", bound="Lists")


@dataclass(frozen=True, eq=False)
class Lists:
    """A list of column indices for each row."""

    indptr: Offsets  # [rows + 1], from 0 to nnz
    indices: Ids  # [nnz]

    _per_element: ClassVar[tuple[str, ...]] = ("indices",)  # fields of length nnz

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        """The number of stored elements."""
        return len(self.indices)

    def row_numbers(self) -> NDArray[np.int64]:
        """The row of each element: [nnz]."""
        return np.repeat(np.arange(self.rows), np.diff(self.indptr))

    def part(self: L, begin: int, end: int) -> L:
        """Rows begin to end; only `indptr` is copied."""
        if not 0 <= begin <= end <= self.rows:
            raise IndexError(f"there are no rows {begin} to {end} among {self.rows}")
        if (begin, end) == (0, self.rows):
            return self
        first, last = int(self.indptr[begin]), int(self.indptr[end])
        return self._selected(np.asarray(self.indptr[begin : end + 1]) - first, slice(first, last))

    def where(self: L, keep: NDArray[np.bool_]) -> L:
        """The same rows without the elements for which `keep` [nnz] is false."""
        return self._selected(indptr_of(keep)[self.indptr], keep)

    @classmethod
    def concatenate(cls: type[L], parts: Sequence[L]) -> L:
        """The rows of all parts, of which there is at least one, in this order."""
        if len(parts) == 1:
            return parts[0]
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in cls._per_element}
        lengths = np.concatenate([np.diff(part.indptr) for part in parts])
        return dataclasses.replace(parts[0], indptr=indptr_of(lengths), **arrays)

    @classmethod
    def side_by_side(cls: type[L], parts: Sequence[L]) -> L:
        """Each row of the result is that row of all parts, of which there is at least one, in this order."""
        if len(parts) == 1:
            return parts[0]
        order = np.argsort(np.concatenate([part.row_numbers() for part in parts]), kind="stable")
        arrays = {name: np.concatenate([getattr(part, name) for part in parts])[order] for name in cls._per_element}
        return dataclasses.replace(parts[0], indptr=np.sum([part.indptr for part in parts], axis=0), **arrays)

    def _selected(self: L, indptr: Offsets, which: slice | NDArray[np.bool_]) -> L:
        arrays: dict[str, Any] = {name: getattr(self, name)[which] for name in self._per_element}
        return dataclasses.replace(self, indptr=indptr, **arrays)


@dataclass(frozen=True, eq=False)
class Csr(Lists):
    """A sparse matrix by rows: lists with a value for each element."""

    values: Floats  # [nnz]

    _per_element: ClassVar[tuple[str, ...]] = ("indices", "values")

    @cached_property
    def by_column(self) -> _core.GroupedInputs:
        """The elements grouped by column, for native walks; made once, so the arrays must not change afterwards."""
        return _core.GroupedInputs(self.indptr, self.indices, self.values)

    @classmethod
    def from_dense(cls, matrix: Floats) -> Csr:
        """The elements of a matrix that are not 0."""
        rows, columns = np.nonzero(matrix)
        counts = np.bincount(rows, minlength=len(matrix))
        return Csr(indptr_of(counts), columns.astype(np.int32), np.ascontiguousarray(matrix[rows, columns]))


def indptr_of(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Where rows of these lengths begin and end: [rows + 1]."""
    indptr = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return indptr


def scale_rows(indptr: NDArray[Any], values: NDArray[np.float64]) -> None:
    """Scales the values of each row to length 1, in place."""
    rows = len(indptr) - 1
    row_of = np.repeat(np.arange(rows), np.diff(indptr))
    values /= np.sqrt(np.bincount(row_of, values**2, rows))[row_of]
