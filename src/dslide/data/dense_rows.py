"""Dense rows, such as embeddings, and rows that have both sparse and dense features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dslide import _core
from dslide.data.rows import MAX_COLUMNS, SparseRows
from dslide.errors import DataError
from dslide.util.arrays import Floats, aligned_empty, padded
from dslide.util.csr import Csr

TYPES = ("float16", "float32", "float64")
PIECE_BYTES = 16 << 20  # of rows that are checked at a time


@dataclass(frozen=True, eq=False)
class DenseRows:
    """A matrix by rows, which may be a mapped file of float16, float32 or float64. It is never copied: chosen rows are
    kept by their numbers, and become float32 when they are used."""

    values: NDArray[Any]  # (all rows, columns)
    ids: NDArray[np.int64] | None = None  # the rows of `values` that these are; None: all of them

    def __post_init__(self) -> None:
        values = self.values
        if not isinstance(values, np.ndarray) or values.ndim != 2:
            shape = f"an array of {values.ndim}" if isinstance(values, np.ndarray) else type(values).__name__
            raise DataError(f"expected a matrix of two dimensions, not {shape}")
        if values.dtype.name not in TYPES or not values.dtype.isnative:
            raise DataError(f"expected numbers of {', '.join(TYPES[:-1])} or {TYPES[-1]}, not of {values.dtype}")
        if not values.flags.c_contiguous:
            advice = "numpy.ascontiguousarray makes such a copy"
            raise DataError(f"expected a matrix stored row by row (C order), not by columns (Fortran order); {advice}")
        if values.shape[1] > MAX_COLUMNS:
            raise DataError(f"a matrix can have at most {MAX_COLUMNS} columns, not {values.shape[1]}")

    def __len__(self) -> int:
        return len(self.values) if self.ids is None else len(self.ids)

    @property
    def columns(self) -> int:
        """The number of columns."""
        return int(self.values.shape[1])

    @property
    def is_mapped(self) -> bool:
        """Whether the numbers are in a file, and take no memory."""
        array: Any = self.values
        while isinstance(array, np.ndarray):
            if isinstance(array, np.memmap):
                return True
            array = array.base  # of a view
        return False

    @property
    def memory_bytes(self) -> int:
        """The memory that the rows take."""
        return (0 if self.is_mapped else self.values.nbytes) + (0 if self.ids is None else self.ids.nbytes)

    def refuse_infinite(self) -> None:
        """Raises DataError, with row and column, if a number is NaN, or infinite as float32."""
        step = max(1, PIECE_BYTES // max(1, 4 * self.columns))
        for begin in range(0, len(self), step):
            some = self.part(begin, min(begin + step, len(self)))
            found = some.matrix()[:, : self.columns]
            if not all_finite(found):
                row, column = np.unravel_index(int(np.argmin(np.isfinite(found))), found.shape)
                place = f"row {begin + row}, column {column}"
                raise DataError(f"{place}: expected a finite 32-bit number, found {found[row, column]}")

    def numbers(self) -> NDArray[np.int64]:
        """Which rows of `values` these are."""
        return np.arange(len(self.values), dtype=np.int64) if self.ids is None else self.ids

    def with_columns(self, columns: int) -> DenseRows:
        """These rows; DataError if they have not so many columns."""
        if columns != self.columns:
            raise DataError(f"dense rows have {self.columns} features, and {columns} are expected")
        return self

    def take(self, row_ids: ArrayLike) -> DenseRows:
        """The chosen rows in the order given; only their numbers are copied.

        Parameters
        ----------
        row_ids : array of int
            Numbers of rows.

        Returns
        -------
        DenseRows
        """
        ids = np.asarray(row_ids)
        if ids.size and not np.issubdtype(ids.dtype, np.integer):
            raise IndexError(f"row ids must be whole numbers, not {ids.dtype}")
        ids = ids.astype(np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self):
            raise IndexError(f"there is no row {ids.max() if ids.max() >= len(self) else ids.min()} among {len(self)}")
        return DenseRows(self.values, ids if self.ids is None else self.ids[ids])

    def part(self, begin: int, end: int) -> DenseRows:
        """Rows begin to end; nothing is copied.

        Parameters
        ----------
        begin, end : int

        Returns
        -------
        DenseRows
        """
        if not 0 <= begin <= end <= len(self):
            raise IndexError(f"there are no rows {begin} to {end} among {len(self)}")
        if self.ids is None:
            return DenseRows(self.values[begin:end])
        return DenseRows(self.values, self.ids[begin:end])

    def pieces(self) -> Iterator[NDArray[Any]]:
        """The numbers as they are stored, some rows at a time."""
        step = max(1, PIECE_BYTES // max(1, self.values[:1].nbytes))
        for begin in range(0, len(self), step):
            yield self.values[begin : begin + step] if self.ids is None else self.values[self.ids[begin : begin + step]]

    def matrix(self, rows: NDArray[np.integer] | None = None) -> Floats:
        """Some rows, or all, as float32: (rows, padded columns), 0 beyond the columns.

        Parameters
        ----------
        rows : array of int
            Numbers of rows; by default all.

        Returns
        -------
        array (rows, padded columns) of float32
        """
        some = self if rows is None else self.take(rows)
        out = aligned_empty(len(some), padded(self.columns))
        values = self.values.view(np.uint16) if self.values.dtype == np.float16 else self.values
        _core.gather_dense(values, np.ascontiguousarray(some.numbers()), out)
        return out

    @classmethod
    def concatenate(cls, parts: Sequence[DenseRows]) -> DenseRows:
        """The rows of all parts, of which there is at least one, in this order; copied unless they are parts of one
        matrix.

        Parameters
        ----------
        parts : list of DenseRows

        Returns
        -------
        DenseRows
        """
        first = parts[0]
        if all(part.values is first.values for part in parts):
            return DenseRows(first.values, np.concatenate([part.numbers() for part in parts]))
        return DenseRows(np.concatenate([part.values[part.numbers()] for part in parts]))


@dataclass(frozen=True, eq=False)
class MixedRows:
    """Rows with sparse features and, in columns after these, dense ones: `[bag of words | embedding]`."""

    sparse: SparseRows
    dense: DenseRows

    def __post_init__(self) -> None:
        if len(self.sparse) != len(self.dense):
            raise DataError(f"there are {len(self.sparse)} rows of sparse features but {len(self.dense)} of dense ones")
        if self.columns > MAX_COLUMNS:
            raise DataError(f"rows can have at most {MAX_COLUMNS} features, not {self.columns}")

    def __len__(self) -> int:
        return len(self.dense)

    @property
    def columns(self) -> int:
        """The number of columns, sparse and dense ones."""
        return self.sparse.columns + self.dense.columns

    @property
    def memory_bytes(self) -> int:
        """The memory that the rows take."""
        return self.sparse.memory_bytes + self.dense.memory_bytes

    def refuse_infinite(self) -> None:
        """Raises DataError if a number is NaN or infinite."""
        self.sparse.refuse_infinite()
        self.dense.refuse_infinite()

    def with_columns(self, columns: int) -> MixedRows:
        """The same rows with more sparse columns, in which nothing is."""
        return MixedRows(self.sparse.with_columns(columns - self.dense.columns), self.dense)

    def take(self, row_ids: ArrayLike) -> MixedRows:
        """The chosen rows in the order given; sparse features are copied.

        Parameters
        ----------
        row_ids : array of int
            Numbers of rows.

        Returns
        -------
        MixedRows
        """
        return MixedRows(self.sparse.take(row_ids), self.dense.take(row_ids))

    def part(self, begin: int, end: int) -> MixedRows:
        """Rows begin to end.

        Parameters
        ----------
        begin, end : int

        Returns
        -------
        MixedRows
        """
        return MixedRows(self.sparse.part(begin, end), self.dense.part(begin, end))

    @classmethod
    def concatenate(cls, parts: Sequence[MixedRows]) -> MixedRows:
        """The rows of all parts, of which there is at least one, in this order.

        Parameters
        ----------
        parts : list of MixedRows

        Returns
        -------
        MixedRows
        """
        return MixedRows(
            SparseRows.concatenate([part.sparse for part in parts]),
            DenseRows.concatenate([part.dense for part in parts]),
        )


def all_finite(values: Floats) -> bool:
    """Whether there is neither NaN, which the largest of some numbers is if one of them is, nor infinity."""
    return bool(np.isfinite(values.max(initial=0)) and np.isfinite(values.min(initial=0)))


Features = SparseRows | DenseRows | MixedRows


def sparse_part(x: Features) -> SparseRows:
    """The sparse features of rows; those of dense rows are none.

    Parameters
    ----------
    x : rows of features

    Returns
    -------
    SparseRows
    """
    if isinstance(x, MixedRows):
        return x.sparse
    if isinstance(x, DenseRows):
        return SparseRows(np.zeros(len(x) + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), 0)
    return x


def as_sparse(x: Features) -> SparseRows:
    """All features of a few rows, copied, as sparse ones."""
    if isinstance(x, SparseRows):
        return x
    rows = x.dense if isinstance(x, MixedRows) else x
    dense = Csr.from_dense(rows.matrix()[:, : rows.columns])
    if isinstance(x, MixedRows):
        shifted = Csr(dense.indptr, dense.indices + np.int32(x.sparse.columns), dense.values)
        dense = Csr.side_by_side([Csr(x.sparse.indptr, x.sparse.indices, x.sparse.values), shifted])
    return SparseRows(dense.indptr, dense.indices, dense.values, x.columns)


def dense_part(x: Features) -> DenseRows | None:
    """The dense features of rows, if they have any.

    Parameters
    ----------
    x : rows of features

    Returns
    -------
    DenseRows or None
    """
    if isinstance(x, MixedRows):
        return x.dense
    return x if isinstance(x, DenseRows) else None
