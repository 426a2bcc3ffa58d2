"""Skip-gram rows of a stream of words: each word is the feature of a row, the words around it are the labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dslide.data.rows import SparseRows
from dslide.util.csr import indptr_of


@dataclass(frozen=True, eq=False)
class WindowRows:
    """A row for each word of a stream, made on demand. Windows end where sentences do."""

    words: NDArray[np.int32]  # the stream: word numbers
    offsets: NDArray[np.int64]  # sentence i is words[offsets[i]:offsets[i+1]], none is empty
    reach: NDArray[np.uint8]  # [words]: how many words on each side are labels
    longest: int  # the largest possible reach
    columns: int  # distinct words

    def __len__(self) -> int:
        return len(self.words)

    def with_labels(self) -> NDArray[np.int32]:
        """The indices of rows with labels: all but those of sentences of one word."""
        rows = np.arange(len(self), dtype=np.int32)
        alone = self.offsets[:-1][np.diff(self.offsets) == 1]
        return np.delete(rows, alone) if len(alone) else rows

    def batch(self, rows: ArrayLike) -> tuple[SparseRows, SparseRows]:
        """Features and labels of the chosen rows, in the order given. A word that occurs n times in the window is a
        label of weight n."""
        at = np.asarray(rows, np.int64)
        sentence = np.searchsorted(self.offsets, at, side="right")
        first = np.maximum(at - self.reach[at], self.offsets[sentence - 1])[:, None]
        last = np.minimum(at + self.reach[at], self.offsets[sentence] - 1)[:, None]
        steps = np.delete(np.arange(-self.longest, self.longest + 1), self.longest)  # without the word itself
        places = at[:, None] + steps  # [rows, 2 * longest]
        inside = (places >= first) & (places <= last)
        ids = self.words.take(places, mode="clip")
        ids[~inside] = self.columns  # no word; sorts after all others
        ids.sort(axis=1)
        there = ids < self.columns
        new = there.copy()  # the first of a run of the same word
        new[:, 1:] &= ids[:, 1:] != ids[:, :-1]
        begins = np.flatnonzero(new[there])
        times = np.diff(begins, append=np.count_nonzero(there)).astype(np.float32)
        y = SparseRows(indptr_of(new.sum(axis=1)), ids[new], times, self.columns)
        x = SparseRows(np.arange(len(at) + 1), self.words[at], np.ones(len(at), np.float32), self.columns)
        return x, y
