"""A stream of words to learn skip-grams from: given a word, which words are around it.

The stream is kept as numbers, 4 bytes a word. Rows are made when a batch asks for them (windows.py). What an epoch
leaves out of the stream and how far each word's window reaches is drawn anew in each epoch, from the seed and the
number of the epoch alone.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dslide.config import check_fields, option
from dslide.data.dataset import Dataset, combined_checksum, crc32, smoothed_frequencies
from dslide.data.files import BLANKS, decode, word_blocks
from dslide.data.rows import SparseRows, join
from dslide.data.skip_grams import WindowRows
from dslide.errors import ConfigError, DataError
from dslide.util.units import counted

READ_BYTES = 1 << 20  # text cut into words at a time: those take ten times the room
PIECE_WORDS = 1 << 18  # of the stream, gone through at a time: temporary arrays take up to 24 bytes a word
MAX_WORDS = 2**31 - 1  # positions in a stream are int32
NAME_BYTES = 100  # of memory for the name of a word, about
NOTHING, LINE_END = 0, 1  # numbers that stand for no word while a file is read

_ONE_BLANK = bytes.maketrans(b"".join(BLANKS).replace(b"\n", b""), b" " * (len(BLANKS) - 1))


@dataclass(frozen=True)
class TokenOptions:
    """How a stream of words becomes rows."""

    window: int = option(
        5, "most words on each side of a word that count as around it; how many do is drawn in each epoch", 1, 255
    )
    min_count: int = option(2, "times that a word must occur; others are left out of the stream", 1)
    subsample: float = option(
        1e-4,
        "a word whose share of the stream, f, is above this is kept with a chance of sqrt(this / f); 0: always",
        0,
        1,
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, eq=False)
class Tokens:
    """A stream of words. Features and labels both are the words, numbered from 0.

    As data to train on it has other rows in each `epoch`. As data to test with (`rows`) it has a row for each word,
    the labels of which are all words in the largest window.
    """

    words: NDArray[np.int32]  # the stream: numbers of words
    offsets: NDArray[np.int64]  # sentence i is words[offsets[i]:offsets[i+1]], none is empty
    names: Sequence[str]
    options: TokenOptions
    source: str = ""
    left_out: int = 0  # words of the file that are not in the stream

    vectorizer: ClassVar[None] = None
    users: ClassVar[None] = None
    seen: ClassVar[None] = None
    base: ClassVar[int] = 0

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
        """How often each word is in the stream."""
        return _counted(self.words, len(self.names))

    @cached_property
    def checksum(self) -> str:
        """A digest of the stream, its words and the options."""
        about = json.dumps([list(self.names), dataclasses.asdict(self.options)])
        sums = {"words": crc32(self.words), "offsets": crc32(self.offsets), "about": zlib.crc32(about.encode())}
        return combined_checksum(self.features, self.labels, sums)

    @cached_property
    def _chances(self) -> NDArray[np.float32]:
        """With what chance an occurrence of each word is kept in an epoch."""
        shares = np.maximum(self.label_counts, 1) / max(len(self), 1)
        limit = self.options.subsample or 1.0
        return np.minimum(np.sqrt(limit / shares), 1).astype(np.float32)

    @cached_property
    def _kept(self) -> NDArray[np.float64]:
        """How often each word is in an epoch on average."""
        return self._chances.astype(np.float64) * self.label_counts.astype(np.float64)

    def label_frequencies(self) -> NDArray[np.float64]:
        """About the share of an epoch's rows that have each label, none 0 or 1. A row has window + 1 words around it
        on average."""
        rows = self._kept.sum()
        shares = 1 - (1 - self._kept / rows) ** (self.options.window + 1)
        return smoothed_frequencies(shares * rows, rows)

    @property
    def rows_per_epoch(self) -> int:
        """The rows of an epoch, on average."""
        return round(float(self._kept.sum()))

    @property
    def values_per_row(self) -> tuple[float, float]:
        """Features and, if sentences are long, labels of a row in training, on average."""
        return 1.0, self.options.window + 1.0

    @property
    def data_bytes(self) -> int:
        """The memory that training needs for the data: the stream, twice while it is read, and later an epoch with the
        order of its rows."""
        stream = self.words.nbytes + self.offsets.nbytes
        drawn = 0 if self.options.subsample == 0 else 4 * self._kept.sum() + self.offsets.nbytes
        epoch = int(drawn + 9 * self._kept.sum())  # reach of windows, rows, and those in order
        return stream + max(stream, epoch) + NAME_BYTES * len(self.names)

    def epoch(self, number: int, seed: int) -> WindowRows:
        """The rows of an epoch: words that are too frequent left out by chance, then windows of chance size."""
        random = np.random.default_rng([seed, number, 1])  # [seed, number] is the order of rows
        words, offsets = self.words, self.offsets
        if self.options.subsample > 0:
            words, offsets = self._subsampled(random)
        window = self.options.window
        reach = random.integers(1, window, len(words), np.uint8, endpoint=True)
        return WindowRows(words, offsets, reach, window, len(self.names))

    def _subsampled(self, random: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        pieces: deque[NDArray[np.int32]] = deque()
        offsets, total = np.empty_like(self.offsets), 0
        for begin in range(0, len(self), PIECE_WORDS):
            piece = self.words[begin : begin + PIECE_WORDS]
            keep = random.random(len(piece), np.float32) < self._chances[piece]
            pieces.append(piece[keep])
            first, last = np.searchsorted(self.offsets, [begin, begin + len(piece) + 1])
            kept_before = np.concatenate([[0], np.cumsum(keep)])
            offsets[first:last] = total + kept_before[self.offsets[first:last] - begin]
            total += len(pieces[-1])
        return join(pieces, np.int32), _without_empty(offsets)

    def rows(self, begin: int, end: int) -> tuple[SparseRows, SparseRows]:
        """Features and labels of rows begin to end to test with."""
        return self._full_windows(np.arange(begin, end))

    def take(self, row_ids: NDArray[np.integer]) -> Dataset:
        """The chosen rows to test with, in memory."""
        x, y = self._full_windows(row_ids)
        return Dataset(x, y, self.label_names, self.feature_names, source=self.source)

    def _full_windows(self, row_ids: NDArray[np.integer]) -> tuple[SparseRows, SparseRows]:
        window = self.options.window
        reach = np.broadcast_to(np.uint8(window), len(self))
        return WindowRows(self.words, self.offsets, reach, window, len(self.names)).batch(row_ids)

    def split(self, share: float, seed: int = 0) -> tuple[Tokens, Tokens]:
        """The stream without its last `share`, to train on, and that, to test with. Which words count, and how they are
        numbered, follows from the first part alone. The cut is the same for all seeds: parts that lie among each other
        would foretell each other."""
        if not 0 < share < 1:
            raise ConfigError(f"share: expected a number above 0 and below 1, not {share!r}")
        cut = round(len(self) * (1 - share))
        counts = _counted(self.words[:cut], len(self.names))
        order, number_of = _numbered(counts, self.names, self.options.min_count)
        names = [self.names[i] for i in order]
        parts = []
        for begin, end, what in ((0, cut, "to train on"), (cut, len(self), "held out")):
            words, offsets = _kept_words(
                number_of[self.words[begin:end]], np.clip(self.offsets - begin, 0, end - begin)
            )
            if len(words) == 0:
                raise DataError(f"{self.source}: no words are left in the part {what}, {end - begin} of {len(self)}")
            parts.append(dataclasses.replace(
                self, words=words, offsets=offsets, names=names, left_out=end - begin - len(words)
            ))  # fmt: skip
        return parts[0], parts[1]

    def in_words(self) -> str:
        """What it is, for people."""
        lines = len(self.offsets) - 1
        text = f"{len(self):,} words in {counted(lines, 'line')}, {len(self.names):,} different ones"
        if self.left_out:
            text += f"; {self.left_out:,} more that are rare or unknown were left out"
        return text


Data = Dataset | Tokens  # to train on or to test with
Rows = Dataset | WindowRows  # what an epoch of them has


def load_tokens(
    path: str | Path,
    options: TokenOptions | None = None,
    names: Sequence[str] | None = None,
    block_bytes: int = READ_BYTES,
) -> Tokens:
    """Reads a text file, plain, gzip or xz, as a stream of words.

    Words are what stands between blanks, as it is; each line is a sentence, a line may be as long as the file. Without
    `names` words are numbered by falling frequency, then by name, and rare ones are left out. With them, the words of a
    model, those are left out that they lack.
    """
    options = options or TokenOptions()
    number_of: defaultdict[bytes, int] = defaultdict()
    number_of.default_factory = number_of.__len__  # a new word gets the next number
    number_of[b""], number_of[b"\n"] = NOTHING, LINE_END
    blocks: deque[NDArray[np.int32]] = deque()
    for line, block in word_blocks(path, block_bytes):
        decode(path, line, block)
        tokens = block.translate(_ONE_BLANK).replace(b"\n", b" \n ").split(b" ")
        numbers = np.fromiter(map(number_of.__getitem__, tokens), np.int32, len(tokens))
        blocks.append(numbers[numbers != NOTHING])
    counts = np.zeros(len(number_of), np.int64)
    for numbers in blocks:
        counts += np.bincount(numbers, minlength=len(counts))
    counts[LINE_END] = 0
    found = [word.decode() for word in number_of]
    if names is None:
        order, rank_of = _numbered(counts, found, options.min_count)
        names = [found[i] for i in order]
        expected = f"occurs {options.min_count} times or more"
    else:
        known = {name: rank for rank, name in enumerate(names)}
        rank_of = np.array([-1, -1, *(known.get(word, -1) for word in found[2:])], np.int32)
        expected = "is known to the model"
    words, offsets = _ranked(blocks, rank_of)
    if len(words) == 0:
        raise DataError(f"{path}: no word of it {expected}")
    if len(words) > MAX_WORDS:
        raise DataError(f"{path}: has {len(words):,} words, more than {MAX_WORDS:,}")
    return Tokens(words, offsets, names, options, str(path), int(counts.sum()) - len(words))


def _counted(words: NDArray[np.int32], columns: int) -> NDArray[np.int64]:
    """How often each number occurs."""
    counts = np.zeros(columns, np.int64)
    for begin in range(0, len(words), PIECE_WORDS):
        counts += np.bincount(words[begin : begin + PIECE_WORDS], minlength=columns)
    return counts


def _numbered(counts: NDArray[np.int64], names: Sequence[str], min_count: int) -> tuple[list[int], NDArray[np.int32]]:
    """Words that are frequent enough, the most frequent first, and the rank of every word, -1 if it is not."""
    enough = np.flatnonzero(counts >= min_count)
    order = sorted(enough.tolist(), key=lambda word: (-counts[word], names[word]))
    rank_of = np.full(len(counts), -1, np.int32)
    rank_of[order] = np.arange(len(order), dtype=np.int32)
    return order, rank_of


def _ranked(
    blocks: deque[NDArray[np.int32]], rank_of: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Stream and sentences out of blocks of numbers; uses the blocks up."""
    pieces: deque[NDArray[np.int32]] = deque()
    ends, total = [np.zeros(1, np.int64)], 0
    while blocks:
        numbers = blocks.popleft()
        ranks = rank_of[numbers]
        known = ranks >= 0
        ends.append(total + np.cumsum(known)[numbers == LINE_END])
        pieces.append(ranks[known])
        total += len(pieces[-1])
    ends.append(np.array([total]))
    return join(pieces, np.int32), _without_empty(np.concatenate(ends))


def _kept_words(ranks: NDArray[np.int32], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Stream and sentences without words of rank -1."""
    known = ranks >= 0
    kept_before = np.concatenate([[0], np.cumsum(known)])
    return ranks[known], _without_empty(kept_before[offsets])


def _without_empty(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Offsets of sentences without those that have no words."""
    return offsets[np.diff(offsets, prepend=-1) > 0]
