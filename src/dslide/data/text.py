"""Raw text to TF-IDF rows."""

from __future__ import annotations

import dataclasses
import heapq
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dslide.config import check_fields, option
from dslide.data.rows import RowsBuilder, SparseRows
from dslide.errors import ConfigError, DataError, UserError
from dslide.util.arrays import Floats, Ids
from dslide.util.csr import indptr_of, scale_rows

Text = str | tuple[tuple[str, int], ...]  # a text, or several, each with the number of times that its words count
_WORD = re.compile(r"[^\W_]{2,}")  # two or more letters or digits of any script
_BLOCK_ROWS = 4096
SHORTEST_PART = 3  # characters


@dataclass(frozen=True)
class TextOptions:
    """TF-IDF: (1 + log tf) * idf with idf = log(rows / df) + 1, rows scaled to length 1."""

    min_df: int = option(2, "number of rows in which a word must occur", 1)
    max_features: int = option(0, "largest number of words, of which the most frequent are kept; 0: no limit", 0)
    sublinear: bool = option(True, "count a word that occurs n times as 1 + log n")
    lowercase: bool = option(True, "ignore case")
    normalize: bool = option(True, "scale rows to length 1")
    characters: int = option(0, "parts of words of 3 to this many characters become features too; 0: none", 0, 16)
    stop_words: tuple[str, ...] = option((), "words that do not become features: a file with one per line")
    ngrams: int = option(1, "longest run of words that becomes a feature", 1, 16)  # each adds about as many as words

    def __post_init__(self) -> None:
        check_fields(self)
        if 0 < self.characters < SHORTEST_PART:
            raise ConfigError(f"characters: expected 0, or {SHORTEST_PART} or more, not {self.characters}")


class TextVectorizer:
    """Vectorizes texts with a vocabulary learned once; words are in order of falling df, then by name."""

    def __init__(self, options: TextOptions | None = None) -> None:
        self.options = options or TextOptions()
        lowercase = self.options.lowercase
        self._stop_words = frozenset(word.lower() if lowercase else word for word in self.options.stop_words)
        self.words: list[str] = []
        self._column_of: tuple[list[str], dict[str, int]] = [], {}  # of these words, made when it is needed
        self.df: NDArray[np.int64] = np.zeros(0, np.int64)  # rows that each word occurred in
        self.rows = 0  # rows it was learned from
        self.grows = False  # whether the next texts that are read add words

    def fit_transform(self, texts: Iterable[str]) -> sp.csr_matrix:
        """Learns the vocabulary from the texts and returns their rows, as a scipy matrix.

        Parameters
        ----------
        texts : list of str

        Returns
        -------
        scipy.sparse.csr_matrix (rows, words)

        Examples
        --------
        >>> from dslide.data import TextOptions, TextVectorizer
        >>> vectorizer = TextVectorizer(TextOptions(min_df=1))
        >>> vectorizer.fit_transform(["red wine", "white wine"]).shape
        (2, 3)
        >>> vectorizer.transform(["red red beer"]).nnz
        1
        """
        return self.fit_transform_rows(texts).to_scipy()

    def transform(self, texts: Iterable[str]) -> sp.csr_matrix:
        """Rows of the texts, as a scipy matrix; words outside the vocabulary are ignored.

        Parameters
        ----------
        texts : list of str

        Returns
        -------
        scipy.sparse.csr_matrix (rows, words)

        Raises
        ------
        DataError
            No words were learned yet.
        """
        return self.transform_rows(texts).to_scipy()

    def fit_transform_rows(self, texts: Iterable[Text]) -> SparseRows:
        """`fit_transform`, as SparseRows.

        Parameters
        ----------
        texts : list of str

        Returns
        -------
        SparseRows
        """
        number_of: defaultdict[str, int] = defaultdict()
        number_of.default_factory = number_of.__len__  # a new word gets the next number
        blocks = list(self._count(texts, lambda words: map(number_of.__getitem__, words)))
        self.rows = sum(block.shape[0] for block in blocks)
        df = count_pieces((block.indices for block in blocks), len(number_of))
        words = list(number_of)
        kept, column_of = rank_words(df, words, self.options.min_df, self.options.max_features or None)
        if not kept:
            raise DataError(f"no word of the texts occurs in {self.options.min_df} rows or more")
        self.words, self.df = [words[i] for i in kept], df[kept]
        return self._weigh(_keep_known(column_of[block.indices], block.indptr, block.data) for block in blocks)

    def learn(self, counts: Iterable[tuple[str, int]], rows: int) -> None:
        """Learns words from the number of rows, of so many, that each occurs in; rare ones are left out."""
        enough = (pair for pair in counts if pair[1] >= self.options.min_df)
        most, by_rank = self.options.max_features, lambda pair: (-pair[1], pair[0])
        kept = heapq.nsmallest(most, enough, by_rank) if most else sorted(enough, key=by_rank)
        if not kept:
            raise DataError(f"no word of the texts occurs in {self.options.min_df} rows or more")
        self.words, self.df, self.rows = [word for word, _ in kept], np.array([df for _, df in kept], np.int64), rows

    def document_frequencies(self, texts: Iterable[Text]) -> Counter[str]:
        """The number of the texts that each word occurs in."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update({word for part, _ in parts_of(text) for word in self._words_of(part)})
        return counts

    def transform_rows(self, texts: Iterable[Text]) -> SparseRows:
        """`transform`, as SparseRows.

        Parameters
        ----------
        texts : list of str

        Returns
        -------
        SparseRows
        """
        if isinstance(texts, str):
            raise DataError("expected a list of texts, not a single one")
        if not self.words:
            raise UserError("the vectorizer has not learned any words yet: fit it first")
        column_of = self.column_of()
        return self._weigh(self._count(texts, lambda words: map(column_of.get, words, repeat(-1))))

    def column_of(self) -> dict[str, int]:
        """The number of each known word; it is kept for the next texts."""
        if self._column_of[0] is not self.words:
            self._column_of = self.words, {word: column for column, word in enumerate(self.words)}
        return self._column_of[1]

    def grow(self, texts: Iterable[Text]) -> None:
        """Learns further words, which get the columns after those known, and how frequent all words are now.

        Parameters
        ----------
        texts : list of str
        """
        column_of, known = self.column_of(), len(self.words)
        number_of = _MoreWords(column_of)  # small: there may be very many calls, with few texts each
        rows, pieces = 0, []
        for block in self._count(texts, lambda words: map(number_of.__getitem__, words)):
            pieces.append(block.indices)
            rows += block.shape[0]
        df, words = count_pieces(pieces, known + len(number_of.new)), number_of.new
        most = self.options.max_features
        room = max(0, most - known) if most else None
        new, _ = rank_words(df[known:], words, self.options.min_df, room)
        self.df = np.concatenate([self.df + df[:known], df[known:][new]])
        self.rows += rows
        if new:
            self.words = self.words + [words[i] for i in new]
            column_of.update((words[i], known + rank) for rank, i in enumerate(new))
            self._column_of = self.words, column_of

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON.

        Returns
        -------
        dict
        """
        return {
            "options": dataclasses.asdict(self.options) | {"stop_words": list(self.options.stop_words)},
            "rows": self.rows,
            "words": self.words,
            "df": self.df.tolist(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TextVectorizer:
        """The opposite of `to_dict`.

        Parameters
        ----------
        values : dict

        Returns
        -------
        TextVectorizer

        Raises
        ------
        DataError
            Not what `to_dict` gives.
        """
        if not isinstance(values, dict):
            raise DataError("not a saved vectorizer: expected an object")
        options, words, df, rows = (values.get(key) for key in ("options", "words", "df", "rows"))
        known = {field.name for field in dataclasses.fields(TextOptions)}
        if not isinstance(options, dict) or not options.keys() <= known:
            raise DataError(f"not a saved vectorizer: options: expected some of {', '.join(sorted(known))}")
        try:
            vectorizer = cls(TextOptions(**options))
        except ConfigError as error:
            raise DataError(f"not a saved vectorizer: {error}") from None
        if type(rows) is not int or not 0 <= rows < 2**62:
            raise DataError(f"not a saved vectorizer: rows: expected a whole number, not {rows!r}")
        if not isinstance(words, list) or len(set(map(str, words))) < len(words) or not all(map(_is_text, words)):
            raise DataError("not a saved vectorizer: words: expected a list of distinct texts")
        if not isinstance(df, list) or len(df) != len(words) or not all(type(n) is int and 1 <= n <= rows for n in df):
            raise DataError(f"not a saved vectorizer: df: expected {len(words)} whole numbers, 1 to {rows}")
        vectorizer.words, vectorizer.df, vectorizer.rows = words, np.array(df, np.int64), rows
        return vectorizer

    def __eq__(self, other: object) -> bool:
        """Whether both give the same rows for the same texts."""
        return isinstance(other, TextVectorizer) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def _words_of(self, text: str) -> list[str]:
        words: list[str] = _WORD.findall(text.lower() if self.options.lowercase else text)
        if self._stop_words:
            words = [word for word in words if word not in self._stop_words]
        runs = (zip(*(words[i:] for i in range(n)), strict=False) for n in range(2, self.options.ngrams + 1))
        found = words + [" ".join(run) for runs_of_n in runs for run in runs_of_n]
        if self.options.characters:
            found += [part for word in words for part in _parts(f"<{word}>", self.options.characters)]
        return found

    def _count(
        self, texts: Iterable[Text], columns: Callable[[Sequence[str]], Iterable[int]]
    ) -> Iterator[sp.csr_matrix]:
        """The counts of each column in each row, `_BLOCK_ROWS` rows at a time; column -1 is ignored."""
        texts = iter(texts)
        while block := list(islice(texts, _BLOCK_ROWS)):
            found, ends, heavy = array("i"), [0], []
            for text in block:
                for part, weight in parts_of(text):
                    begin = len(found)
                    found.extend(columns(self._words_of(part)))
                    if weight != 1:
                        heavy.append((begin, len(found), weight))
                ends.append(len(found))
            numbers = np.frombuffer(found, np.int32) if found else np.zeros(0, np.int32)
            counts = np.ones(len(numbers), np.float32)
            for begin, end, weight in heavy:
                counts[begin:end] = weight
            yield _keep_known(numbers, np.array(ends, np.int64), counts)

    def _weigh(self, blocks: Iterable[sp.csr_matrix]) -> SparseRows:
        builder, rows = RowsBuilder(), 0
        for counts in blocks:
            weights = 1 + np.log(counts.data) if self.options.sublinear else counts.data.astype(np.float64)
            weights *= np.log(self.rows / self.df[counts.indices]) + 1
            if self.options.normalize:
                scale_rows(counts.indptr, weights)
            builder.append(counts.indptr.astype(np.int64), counts.indices.astype(np.int32), weights.astype(np.float32))
            rows += counts.shape[0]
        return builder.finish(rows, len(self.words))


class _MoreWords(dict[str, int]):
    """Numbers of words: those of known ones, and for others the next, as they come."""

    def __init__(self, known: Mapping[str, int]) -> None:
        self._known, self.new = known, list[str]()

    def __missing__(self, word: str) -> int:
        number = self._known.get(word, -1)
        if number < 0:
            number = len(self._known) + len(self.new)
            self.new.append(word)
        self[word] = number
        return number


def parts_of(text: Text) -> tuple[tuple[str, int], ...]:
    """The texts that a row has, each with the number of times that its words count."""
    return ((text, 1),) if isinstance(text, str) else text


def _parts(word: str, longest: int) -> Iterator[str]:
    """The parts of a word, with marks at its ends, of 3 to `longest` characters; not the whole word. A mark in front
    tells them from words."""
    for size in range(SHORTEST_PART, min(longest, len(word) - 1) + 1):
        for begin in range(len(word) - size + 1):
            yield f"~{word[begin : begin + size]}"


def count_pieces(pieces: Iterable[Ids], size: int) -> NDArray[np.int64]:
    """How often each number below `size` occurs in all pieces together."""
    counts = np.zeros(size, np.int64)
    for piece in pieces:
        counts += np.bincount(piece, minlength=size)
    return counts


def rank_words(
    counts: NDArray[np.int64], names: Sequence[str], min_count: int, most: int | None = None
) -> tuple[list[int], Ids]:
    """The `most` most frequent words that occur `min_count` times, then by name; and the rank of every word, or -1."""
    enough = np.flatnonzero(counts >= min_count)
    order = sorted(enough.tolist(), key=lambda word: (-counts[word], names[word]))[:most]
    rank_of = np.full(len(counts), -1, np.int32)
    rank_of[order] = np.arange(len(order), dtype=np.int32)
    return order, rank_of


def _is_text(word: object) -> bool:
    """Whether it is a text that can be encoded; JSON can contain halves of surrogate pairs, which can't."""
    return isinstance(word, str) and not any("\ud800" <= c <= "\udfff" for c in word)


def _keep_known(columns: Ids, indptr: NDArray[Any], counts: Floats) -> sp.csr_matrix:
    """A CSR matrix without column -1, duplicates summed, columns in order."""
    known = columns >= 0
    width = int(columns.max(initial=0)) + 1
    matrix = sp.csr_matrix((counts[known], columns[known], indptr_of(known)[indptr]), shape=(len(indptr) - 1, width))
    matrix.sum_duplicates()
    return matrix
