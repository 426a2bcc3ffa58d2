"""Types of arrays, and memory that begins at a cache line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
ALIGNMENT = 64  # bytes; rows of floats are padded to a multiple of it, so that every row begins a cache line


def padded(width: int) -> int:
    """The length that a row of `width` numbers, floats or not, has in memory."""
    lanes = ALIGNMENT // 4
    return -(-width // lanes) * lanes


def aligned_zeros(rows: int, columns: int, dtype: npt.DTypeLike = np.float32) -> Array:
    """Zeros (rows, columns), aligned; the system provides memory only where it is written to."""
    return _aligned(np.zeros, rows, columns, dtype)


def aligned_empty(rows: int, columns: int) -> Floats:
    """Floats (rows, columns), aligned and not initialised."""
    return _aligned(np.empty, rows, columns, np.float32)


def aligned_records(rows: int, columns: int, dtypes: Sequence[npt.DTypeLike]) -> list[Array]:
    """Arrays of zeros (rows, columns), one of each type, interleaved by row in memory: row i of all of them is
    contiguous, since it is read and written together."""
    sizes = [columns * np.dtype(dtype).itemsize for dtype in dtypes]
    ends = np.cumsum(sizes).tolist()
    records = aligned_zeros(rows, ends[-1], np.uint8)
    return [records[:, end - size : end].view(dtype) for end, size, dtype in zip(ends, sizes, dtypes, strict=True)]


def _aligned(make: Callable[[int, npt.DTypeLike], Array], rows: int, columns: int, dtype: npt.DTypeLike) -> Array:
    size = rows * columns * np.dtype(dtype).itemsize
    raw = make(size + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT  # raw.ctypes.data would take ten times as long
    return raw[start : start + size].view(dtype).reshape(rows, columns)
