"""A network's arrays as they were at one moment, for a writer that reads them while training changes them.

This is copy-on-write by rows. The writer reads each array block by block. Of the rows that training is about to change,
those that are not read yet are copied to a buffer first. When that is full, training waits until some are read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from dslide.checkpoint.tensor_file import BLOCK
from dslide.util.arrays import Array

SMALLEST_BUFFER = 32 << 20  # bytes

Rows = npt.NDArray[np.signedinteger]


def buffer_bytes(state_bytes: int) -> int:
    """The size of the buffer for a network's state: a tenth of it, but not less than `SMALLEST_BUFFER`."""
    return min(state_bytes, max(SMALLEST_BUFFER, state_bytes // 10))


def checkpoint_memory(state_bytes: int, during_training: bool = True) -> int:
    """Memory that writing a checkpoint takes at most, in bytes: the buffer, and about three blocks. At the end of
    training a block, and what the check of its numbers takes."""
    block = min(state_bytes, BLOCK)
    if not during_training:
        return block + block // 4
    # one that is written, one for the check of its numbers, one that was freed but not returned to the system
    return buffer_bytes(state_bytes) + 3 * block


class Cancelled(Exception):
    """The snapshot is not wanted any more."""


class Snapshot:
    """The arrays as they are when this is made. `read` is for the writer's thread, `before_change` for the training
    thread (model/storage.py: ChangeListener); `limit` is the size of the buffer in bytes."""

    def __init__(self, arrays: Mapping[str, Array], limit: int) -> None:
        self._arrays = {name: _CopyOnWrite(array) for name, array in arrays.items()}
        self._limit, self._buffered = limit, 0  # bytes
        self._open = True
        self._changed = threading.Condition()  # guards all of the above

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def read(self, name: str) -> Iterator[Array]:
        """The array in pieces, flat, in order. Each array can be read once; every piece is a copy."""
        array = self._arrays[name]
        for block in range(array.blocks):
            with self._changed:
                if not self._open:
                    raise Cancelled
                content, freed = array.take(block)
                self._buffered -= freed
                self._changed.notify_all()
            yield content

    def before_change(self, name: str, rows: Rows | None = None) -> None:
        """Copies what is unread of rows that are about to change (None: all). Waits while the buffer is full."""
        array = self._arrays[name]
        with self._changed:
            while self._open:
                needed = array.unread(rows)
                size = len(needed) * array.row_bytes
                if self._buffered + size <= self._limit or size == 0:
                    array.buffer(needed)
                    self._buffered += size
                    return
                self._changed.wait()

    def close(self) -> None:
        """Ends the snapshot; a writer that still reads gets `Cancelled`."""
        with self._changed:
            self._open = False
            self._changed.notify_all()


class _CopyOnWrite:
    """One array, and the buffered copies of its rows."""

    def __init__(self, array: Array) -> None:
        self._array, self._rows = array, len(array)
        self.row_bytes = array.nbytes // max(1, self._rows)
        self._block_rows = max(1, BLOCK // max(1, self.row_bytes))
        self.blocks = -(-self._rows // self._block_rows)
        self._read = 0  # rows that the writer has read
        self._is_buffered = np.zeros(self._rows, np.bool_)
        self._copies: dict[int, list[tuple[Rows, Array]]] = {}  # by block: numbers of rows, and the rows

    def unread(self, rows: Rows | None) -> Rows:
        """Those of the rows, ascending, that are neither read nor buffered yet."""
        if self._read == self._rows:
            return np.empty(0, np.int64)
        if rows is None:
            return np.flatnonzero(~self._is_buffered[self._read :]) + self._read
        rows = rows[rows >= self._read]
        return np.unique(rows[~self._is_buffered[rows]])

    def buffer(self, rows: Rows) -> None:
        """Copies rows, which ascend."""
        self._is_buffered[rows] = True
        starts = np.flatnonzero(np.diff(rows // self._block_rows)) + 1  # of blocks but the first
        for some in np.split(rows, starts) if len(rows) else ():
            self._copies.setdefault(int(some[0]) // self._block_rows, []).append((some, self._array[some]))

    def take(self, block: int) -> tuple[Array, int]:
        """A copy of a block as it was, flat, and the bytes of the buffer that are free now."""
        begin = block * self._block_rows
        end = min(begin + self._block_rows, self._rows)
        source, buffered = self._array[begin:end], self._is_buffered[begin:end]
        if buffered.any():  # training may be writing these rows
            content = np.empty(source.shape, source.dtype)
            np.copyto(content, source, where=~buffered.reshape(-1, *[1] * (source.ndim - 1)))
        else:
            content = source.copy()
        freed = 0
        for rows, copies in self._copies.pop(block, ()):
            content[rows - begin] = copies
            freed += copies.nbytes
        self._read = end
        return content.reshape(-1), freed
