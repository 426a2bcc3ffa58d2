"""A stream of words to learn skip-grams from: given a word, predict the words around it.

The stream is held as word numbers, 4 bytes each; rows are made batch by batch. Each epoch subsamples
frequent words and draws a window for each word anew, from the seed and the number of the epoch alone.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dslide.config import check_fields, option
from dslide.data.dataset import Dataset, combined_checksum, crc32, smoothed_frequencies
from dslide.data.rows import SparseRows, join
from dslide.data.text import count_pieces, rank_words
from dslide.errors import ConfigError, DataError
from dslide.util.arrays import Floats, Ids, Offsets
from dslide.util.csr import indptr_of
from dslide.util.units import counted

PIECE_WORDS = 1 << 18  # of the stream, processed at a time: temporary arrays take up to 24 bytes per word
SAMPLED_WORDS = 1000  # of a piece of a sample: windows end with it, and few do
NAME_BYTES = 100  # memory for the name of a word, about


@dataclass(frozen=True)
class TokenOptions:
    """How rows are made from a stream of words."""

    # fmt: off
    window: int = option(5, "largest window: words on each side of a word that are its labels; each epoch draws 1 to "
        "this many", 1, 255)
    min_count: int = option(2, "words that occur fewer times are left out of the stream", 1)
    subsample: float = option(1e-4, "a word whose share f of the stream is above this is kept with probability "
        "sqrt(this / f); 0: always", 0, 1)
    # fmt: on

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, eq=False)
class WindowRows:
    """A row for each word of a stream, made on demand. Windows end where sentences do."""

    words: Ids  # the stream: word numbers
    offsets: Offsets  # sentence i is words[offsets[i]:offsets[i+1]], none is empty
    reach: NDArray[np.uint8]  # [words]: how many words on each side are labels
    longest: int  # the largest possible reach
    columns: int  # distinct words

    def __len__(self) -> int:
        return len(self.words)

    def with_labels(self) -> Ids:
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


@dataclass(frozen=True, eq=False)
class Tokens:
    """A stream of words. Features and labels both are the words, numbered from 0. For training it has other rows in
    each `epoch`. For testing (`rows`) it has a row for each word, with all words in the largest window as labels."""

    words: Ids  #: the stream: word numbers
    offsets: Offsets  #: sentence i is words[offsets[i]:offsets[i+1]], none is empty
    names: Sequence[str]
    options: TokenOptions
    source: str = ""
    left_out: int = 0  #: words of the file that are rare or unknown

    vectorizer: ClassVar[None] = None
    users: ClassVar[None] = None
    seen: ClassVar[None] = None
    base: ClassVar[int] = 0
    dense_features: ClassVar[int] = 0

    def __len__(self) -> int:
        return len(self.words)

    @property
    def features(self) -> int:
        """The number of different words."""
        return len(self.names)

    labels = features

    @property
    def feature_names(self) -> Sequence[str]:
        """The words."""
        return self.names

    label_names = feature_names

    @cached_property
    def label_counts(self) -> NDArray[np.int64]:
        """The number of occurrences of each word: [labels]."""
        return _counted(self.words, len(self.names))

    @cached_property
    def checksum(self) -> str:
        """A digest of the stream, its words and the options."""
        about = json.dumps([list(self.names), dataclasses.asdict(self.options)])
        sums = {"words": crc32(self.words), "offsets": crc32(self.offsets), "about": zlib.crc32(about.encode())}
        return combined_checksum(self.features, self.labels, sums)

    @cached_property
    def _chances(self) -> Floats:
        """The probability that an occurrence of each word is kept in an epoch."""
        shares = np.maximum(self.label_counts, 1) / max(len(self), 1)
        limit = self.options.subsample or 1.0
        return np.minimum(np.sqrt(limit / shares), 1).astype(np.float32)

    @cached_property
    def _kept(self) -> NDArray[np.float64]:
        """The expected number of occurrences of each word in an epoch."""
        return self._chances.astype(np.float64) * self.label_counts.astype(np.float64)

    def label_frequencies(self) -> NDArray[np.float64]:
        """The approximate share of an epoch's rows with each label, smoothed; a row has window + 1 of them.

        Returns
        -------
        array (words,) of float64
        """
        rows = self._kept.sum()
        shares = 1 - (1 - self._kept / rows) ** (self.options.window + 1)
        return smoothed_frequencies(shares * rows, rows)

    @property
    def rows_per_epoch(self) -> int:
        """The expected number of rows in an epoch."""
        return round(float(self._kept.sum()))

    @property
    def values_per_row(self) -> tuple[float, float]:
        """The mean number of features and, if sentences are long, of labels of a row in training."""
        return 1.0, self.options.window + 1.0

    @property
    def data_bytes(self) -> int:
        """The memory in training: the stream, twice while it is read, later with an epoch and the order of its rows."""
        stream = self.words.nbytes + self.offsets.nbytes
        drawn = 0 if self.options.subsample == 0 else 4 * self._kept.sum() + self.offsets.nbytes
        epoch = int(drawn + 9 * self._kept.sum())  # windows, row numbers, and their order
        return stream + max(stream, epoch) + NAME_BYTES * len(self.names)

    def epoch(self, number: int, seed: int) -> WindowRows:
        """The rows of an epoch: frequent words subsampled, then a random window for each word.

        Parameters
        ----------
        number : int
            Of the epoch, from 0 on.
        seed : int
            The same number and seed give the same rows.

        Returns
        -------
        rows, to be taken in batches
        """
        random = np.random.default_rng([seed, number, 1])  # [seed, number]: the order of rows
        words, offsets = self._subsampled(random) if self.options.subsample > 0 else (self.words, self.offsets)
        window = self.options.window
        reach = random.integers(1, window, len(words), np.uint8, endpoint=True)
        return WindowRows(words, offsets, reach, window, len(self.names))

    def _subsampled(self, random: np.random.Generator) -> tuple[Ids, Offsets]:
        pieces: deque[Ids] = deque()
        offsets, total = np.empty_like(self.offsets), 0
        for begin in range(0, len(self), PIECE_WORDS):
            piece = self.words[begin : begin + PIECE_WORDS]
            keep = random.random(len(piece), np.float32) < self._chances[piece]
            pieces.append(piece[keep])
            first, last = np.searchsorted(self.offsets, [begin, begin + len(piece) + 1])
            offsets[first:last] = total + indptr_of(keep)[self.offsets[first:last] - begin]
            total += len(pieces[-1])
        return join(pieces, np.int32), without_empty(offsets)

    def rows(self, begin: int, end: int) -> tuple[SparseRows, SparseRows]:
        """Features and labels of rows begin to end, for testing.

        Parameters
        ----------
        begin, end : int

        Returns
        -------
        x, y : SparseRows
        """
        return self._full_windows(np.arange(begin, end))

    def take(self, row_ids: NDArray[np.integer]) -> Dataset:
        """The chosen rows, for testing, in memory.

        Parameters
        ----------
        row_ids : array of int
            Numbers of words in the stream.

        Returns
        -------
        Dataset
        """
        x, y = self._full_windows(row_ids)
        return Dataset(x, y, self.label_names, self.feature_names, source=self.source)

    def _full_windows(self, row_ids: NDArray[np.integer]) -> tuple[SparseRows, SparseRows]:
        window = self.options.window
        reach = np.broadcast_to(np.uint8(window), len(self))
        return WindowRows(self.words, self.offsets, reach, window, len(self.names)).batch(row_ids)

    def split(self, share: float, seed: int = 0) -> tuple[Tokens, Tokens]:
        """The stream without its last `share`, for training, and that part, for testing. Word numbers follow from the
        first part alone. The cut is the same for all seeds: interleaved parts would leak into each other.

        Parameters
        ----------
        share : float
            Of the words, for testing; above 0 and below 1.
        seed : int
            Of no effect.

        Returns
        -------
        first, second : Tokens

        Raises
        ------
        DataError
            A part would have no words.
        """
        if not 0 < share < 1:
            raise ConfigError(f"share: expected a number above 0 and below 1, not {share!r}")
        cut = round(len(self) * (1 - share))
        counts = _counted(self.words[:cut], len(self.names))
        order, number_of = rank_words(counts, self.names, self.options.min_count)
        names = [self.names[i] for i in order]
        parts = []
        for begin, end, what in ((0, cut, "to train on"), (cut, len(self), "held out")):
            numbers = number_of[self.words[begin:end]]
            known = numbers >= 0
            if not known.any():
                raise DataError(f"{self.source}: no words are left in the part {what}, {end - begin} of {len(self)}")
            offsets = without_empty(indptr_of(known)[np.clip(self.offsets - begin, 0, end - begin)])
            left_out = int(np.count_nonzero(~known))
            parts.append(Tokens(numbers[known], offsets, names, self.options, self.source, left_out))
        return parts[0], parts[1]

    def sample(self, words: int, seed: Sequence[int]) -> Tokens:
        """About so many words: pieces of the stream, drawn at random, which windows do not cross.

        Parameters
        ----------
        words : int
        seed : list of int

        Returns
        -------
        Tokens
        """
        pieces = -(-len(self) // SAMPLED_WORDS)
        order = np.random.default_rng(seed).permutation(pieces)
        begins = np.sort(order[: -(-words // SAMPLED_WORDS)]) * SAMPLED_WORDS
        ends = np.minimum(begins + SAMPLED_WORDS, len(self))
        kept = np.zeros(len(self), np.bool_)
        for begin, end in zip(begins, ends, strict=True):
            kept[begin:end] = True
        cuts = np.unique(np.concatenate([self.offsets, begins, ends]))
        return dataclasses.replace(self, words=self.words[kept], offsets=without_empty(indptr_of(kept)[cuts]))

    def and_rows(self, others: Tokens) -> Tokens:
        """This stream and then another one, of the same words or the first of them.

        Parameters
        ----------
        others : Tokens

        Returns
        -------
        Tokens
        """
        words, offsets = [self.words, others.words], [self.offsets, len(self) + others.offsets[1:]]
        return dataclasses.replace(self, words=np.concatenate(words), offsets=np.concatenate(offsets))

    def in_words(self) -> str:
        """A summary for people.

        Returns
        -------
        str
        """
        lines = len(self.offsets) - 1
        text = f"{len(self):,} words in {counted(lines, 'line')}, {len(self.names):,} different ones"
        if self.left_out:
            text += f"; {self.left_out:,} more that are rare or unknown were left out"
        return text


def _counted(words: Ids, columns: int) -> NDArray[np.int64]:
    """The number of occurrences of each word."""
    pieces = (words[begin : begin + PIECE_WORDS] for begin in range(0, len(words), PIECE_WORDS))
    return count_pieces(pieces, columns)


def without_empty(offsets: Offsets) -> NDArray[np.int64]:
    """The offsets without those of empty sentences."""
    return offsets[np.diff(offsets, prepend=-1) > 0]


Data = Dataset | Tokens  # for training or testing
Rows = Dataset | WindowRows  # of an epoch
