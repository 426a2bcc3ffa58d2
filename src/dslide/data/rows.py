"""Sparse rows: how features and labels are held in memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dslide import _core
from dslide.errors import DataError
from dslide.util.arrays import Floats, Ids, Offsets
from dslide.util.csr import Csr
from dslide.util.memory import check_memory, rss_bytes

MAX_COLUMNS = 2**31 - 1  # column indices are int32
SMALL = 1 << 26  # bytes; smaller arrays are allocated without a check of free memory


@dataclass(frozen=True, eq=False)
class SparseRows(Csr):
    """A sparse matrix by rows; indices increase within a row and are below `columns`. Arrays may be np.memmap."""

    columns: int

    def __post_init__(self) -> None:
        for name, dtype in (("indptr", np.int64), ("indices", np.int32), ("values", np.float32)):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != dtype:
                raise DataError(f"{name} must be a one-dimensional numpy array of {np.dtype(dtype).name}")
        if not 0 <= self.columns <= MAX_COLUMNS:
            raise DataError(f"sparse rows can have 0 to {MAX_COLUMNS} columns, not {self.columns}")
        if len(self.indptr) == 0 or self.indptr[0] != 0 or self.indptr[-1] != len(self.indices):
            raise DataError("indptr must begin with 0 and end with the number of indices")
        if len(self.indices) != len(self.values):
            raise DataError(f"there are {len(self.indices)} indices but {len(self.values)} values")

    def __len__(self) -> int:
        return self.rows

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseRows:
        """Rows of any scipy sparse matrix or array, or of a dense two-dimensional one. Arrays that fit are shared, not
        copied. Duplicates are summed, indices sorted, stored zeros kept; NaN and infinity are refused.

        Parameters
        ----------
        matrix : scipy sparse matrix or array, or dense array (rows, columns)

        Returns
        -------
        SparseRows

        Raises
        ------
        DataError
            Values that are not finite numbers of 32 bits.

        Examples
        --------
        >>> from dslide import SparseRows
        >>> SparseRows.from_scipy([[0, 2.5], [1, 0]]).to_scipy().toarray()
        array([[0. , 2.5],
               [1. , 0. ]], dtype=float32)
        """
        if isinstance(matrix, SparseRows):
            return matrix
        csr = _checked_csr(matrix)
        if csr.shape[1] > MAX_COLUMNS:
            raise DataError(f"a matrix can have at most {MAX_COLUMNS} columns, not {csr.shape[1]}")
        with np.errstate(over="ignore"):  # overflow gives infinity, which is refused below
            values = np.ascontiguousarray(csr.data, dtype=np.float32)
        indptr = np.ascontiguousarray(csr.indptr, dtype=np.int64)
        indices = np.ascontiguousarray(csr.indices, dtype=np.int32)
        nnz = int(indptr[-1])
        rows = cls(indptr, indices[:nnz], values[:nnz], int(csr.shape[1]))
        rows.refuse_infinite()
        return rows

    def refuse_infinite(self) -> None:
        """Raises DataError, with row and column, if a value is NaN or infinite."""
        finite = np.isfinite(self.values)
        if not finite.all():
            where = int(np.argmin(finite))
            place = f"row {self.row_of(where)}, column {self.indices[where]}"
            raise DataError(f"{place}: expected a finite 32-bit number, found {self.values[where]}")

    @property
    def memory_bytes(self) -> int:
        """The size of the rows in memory."""
        return 8 * (len(self) + 1) + 8 * self.nnz

    def row_of(self, position: int) -> int:
        """The row of the value at a position of `values`."""
        return int(np.searchsorted(self.indptr, position, side="right")) - 1

    def to_scipy(self) -> sp.csr_matrix:
        """A scipy CSR matrix of float32; scipy chooses the type of its indices.

        Returns
        -------
        scipy.sparse.csr_matrix
        """
        return sp.csr_matrix((self.values, self.indices, self.indptr), shape=(len(self), self.columns))

    def take(self, row_ids: ArrayLike) -> SparseRows:
        """The chosen rows, copied, in the order given; a row may be chosen more than once.

        Parameters
        ----------
        row_ids : array of int
            Numbers of rows.

        Returns
        -------
        SparseRows
        """
        ids = np.asarray(row_ids)
        if ids.size and not np.issubdtype(ids.dtype, np.integer):
            raise IndexError(f"row ids must be whole numbers, not {ids.dtype}")
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        try:
            indptr, indices, values = _core.gather_rows(self.indptr, self.indices, self.values, self.columns, ids)
        except RuntimeError as error:
            raise DataError(f"damaged sparse rows: {error}") from None
        return SparseRows(indptr, indices, values, self.columns)

    def with_columns(self, columns: int) -> SparseRows:
        """The same rows with more columns, in which nothing is.

        Parameters
        ----------
        columns : int
            At least as many as there are.

        Returns
        -------
        SparseRows
        """
        return SparseRows(self.indptr, self.indices, self.values, columns)

    def empty_rows(self) -> int:
        """The number of rows without values."""
        return int(np.count_nonzero(self.indptr[1:] == self.indptr[:-1]))

    def column_counts(self) -> NDArray[np.int64]:
        """The number of values in each column: [columns].

        Returns
        -------
        array (columns,) of int64
        """
        return np.bincount(self.indices, minlength=self.columns)


class RowsBuilder:
    """Collects sparse rows piece by piece in memory (a `Sink`)."""

    def __init__(self) -> None:
        self._ends: deque[NDArray[np.int64]] = deque([np.zeros(1, np.int64)])
        self._indices: deque[Ids] = deque()
        self._values: deque[Floats] = deque()
        self._nnz = 0

    def append(self, indptr: Offsets, indices: Ids, values: Floats) -> None:
        """Adds rows; `indptr` starts at 0."""
        self._ends.append(indptr[1:] + self._nnz)
        self._indices.append(indices)
        self._values.append(values)
        self._nnz += len(indices)

    def finish(self, rows: int, columns: int, base: int = 0) -> SparseRows:
        """The first `rows` rows (all others must be empty), with `base` subtracted from every index."""
        indptr = join(self._ends, np.int64)[: rows + 1]
        indices = join(self._indices, np.int32)
        if base:
            indices -= np.int32(base)
        return SparseRows(indptr, indices, join(self._values, np.float32), columns)


def join(pieces: deque[NDArray[Any]], dtype: type) -> NDArray[Any]:
    """The pieces as one array. Each is freed once it is copied, to bound peak memory."""
    total = sum(map(len, pieces))
    needed = total * np.dtype(dtype).itemsize
    if needed > SMALL:
        check_memory(rss_bytes() + needed, "the data in one piece", "it has to fit into memory")
    joined: NDArray[Any] = np.empty(total, dtype)
    at = 0
    while pieces:
        piece = pieces.popleft()
        joined[at : at + len(piece)] = piece
        at += len(piece)
    return joined


def _checked_csr(matrix: Any) -> Any:
    """The matrix as canonical scipy CSR, its structure checked: scipy itself crashes on bad indices."""
    array: Any = matrix if sp.issparse(matrix) else np.asarray(matrix)
    if len(array.shape) != 2:
        raise DataError(f"expected a matrix of two dimensions, not {len(array.shape)}")
    if array.dtype.kind not in "biuf":
        raise DataError(f"expected a matrix of numbers, not of {array.dtype}")
    if not sp.issparse(matrix):
        return sp.csr_matrix(array.astype(np.float32) if array.dtype == np.float16 else array)
    try:
        if hasattr(array, "check_format"):
            array.check_format(full_check=True)
        # scipy supports float16 only in part
        csr = (array.astype(np.float32) if array.dtype == np.float16 else array).tocsr()
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        return csr
    except ValueError as error:
        raise DataError(f"damaged sparse matrix: {error}") from None
