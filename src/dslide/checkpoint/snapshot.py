"""A network's arrays as they were at one moment, for a writer that takes its time while training changes them.

There is no copy of them. The writer goes through each array block by block. Training says which rows it is about to
change; those that the writer has not come to yet are put aside, and the writer takes them from there. What is put aside
is bounded: when there is too much of it, training waits until the writer has used some.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from dslide.checkpoint.tensor_file import BLOCK, Array

Rows = npt.NDArray[np.signedinteger]


class Cancelled(Exception):
    """The snapshot is not wanted any more."""


class Snapshot:
    """The arrays as they are when this is made. `read` is for the writer's thread, `before_change`
    for that of training; `limit` is how many bytes may be put aside."""

    def __init__(self, arrays: Mapping[str, Array], limit: int) -> None:
        self._arrays = {name: _Watched(array) for name, array in arrays.items()}
        self._limit = limit
        self._aside = 0  # bytes
        self._open = True
        self._changed = threading.Condition()  # of all of the above

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def read(self, name: str) -> Iterator[Array]:
        """The array in pieces, flat, in order. Each array is to be read once; every piece is the reader's own."""
        watched = self._arrays[name]
        for block in range(watched.blocks):
            with self._changed:
                if not self._open:
                    raise Cancelled
                content, freed = watched.take(block)
                self._aside -= freed
                self._changed.notify_all()
            yield content

    def before_change(self, name: str, rows: Rows | None = None) -> None:
        """Training is about to change these rows of an array, in any order, or all of them."""
        watched = self._arrays[name]
        with self._changed:
            while self._open:
                wanted = watched.unread(rows)
                size = len(wanted) * watched.row_bytes
                if self._aside + size <= self._limit or size == 0:
                    watched.put_aside(wanted)
                    self._aside += size
                    return
                self._changed.wait()

    def close(self) -> None:
        """The snapshot is not needed any more; a writer that still reads gets `Cancelled`."""
        with self._changed:
            self._open = False
            self._changed.notify_all()


class _Watched:
    """One array, and what was put aside of it."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._rows = len(array)
        self.row_bytes = array.nbytes // max(1, self._rows)
        self._block_rows = max(1, BLOCK // max(1, self.row_bytes))
        self.blocks = -(-self._rows // self._block_rows)
        self._read = 0  # rows that the writer has
        self._is_aside = np.zeros(self._rows, np.bool_)
        self._kept: dict[int, list[tuple[Rows, Array]]] = {}  # by block: numbers of rows, and the rows

    def unread(self, rows: Rows | None) -> Rows:
        """Those of the rows, ascending, that are still needed as they are."""
        if self._read == self._rows:
            return np.empty(0, np.int64)
        if rows is None:
            return np.flatnonzero(~self._is_aside[self._read :]) + self._read
        rows = rows[rows >= self._read]
        return np.unique(rows[~self._is_aside[rows]])

    def put_aside(self, rows: Rows) -> None:
        """Copies rows, which ascend."""
        self._is_aside[rows] = True
        blocks = rows // self._block_rows
        starts = np.flatnonzero(np.diff(blocks, prepend=-1))
        for some in np.split(rows, starts[1:]) if len(rows) else ():
            self._kept.setdefault(int(some[0]) // self._block_rows, []).append((some, self._array[some]))

    def take(self, block: int) -> tuple[Array, int]:
        """A copy of a block as it was, flat, and how many bytes were put aside of it."""
        begin = block * self._block_rows
        end = min(begin + self._block_rows, self._rows)
        content = self._array[begin:end].copy()
        freed = 0
        for rows, kept in self._kept.pop(block, ()):
            content[rows - begin] = kept
            freed += kept.nbytes
        self._read = end
        return content.reshape(-1), freed
