"""Texts with labels as a dataset folder: words and labels are counted first, then rows are written."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from dslide.data.convert.processes import AHEAD, in_order
from dslide.data.convert.progress import Progress
from dslide.data.convert.word_counts import BYTES_PER_WORD, MOST_WORDS, WordCounts
from dslide.data.dataset import Dataset
from dslide.data.files import BLOCK_BYTES, source_of
from dslide.data.formats.folder import RowsFiles
from dslide.data.formats.labelled_text import NO_ROWS, Row, label_rows, number_names
from dslide.data.layout import Layout
from dslide.data.rows import SparseRows
from dslide.data.text import TextVectorizer, parts_of
from dslide.errors import DataError
from dslide.util.memory import check_memory, rss_bytes
from dslide.util.units import format_bytes

PIECE_ROWS, PIECE_CHARACTERS = 4096, 1 << 20  # of the rows that a process gets at a time, at most about
PIECE_BYTES = 1 << 24  # of memory that a piece takes as rows of words
READ_BLOCKS = 6  # of a file, as bytes, text and lines, the old and the next
OWN_BYTES = 1 << 24  # of a new process
NAME_BYTES = 280  # of a word that is kept, or a label, in lists, tables and files of names
COPIED_BYTES = 150  # of it in each further process

Piece = list[Row]
Reader = Callable[[str | Path], Iterator[Row]]


def convert_texts(
    paths: Sequence[str | Path], read: Reader, layout: Layout, x: RowsFiles, y: RowsFiles, folder: Path, *,
    vectorizer: TextVectorizer | None, label_names: Sequence[str] | None, processes: int, say: Callable[[str], None],
    progress: Progress,
) -> Dataset:  # fmt: skip
    """Writes rows to `x` and `y`, exactly as `labelled_text` makes them; `read` gives the rows of a file. What does not
    fit into memory is in `folder` meanwhile. `progress` says where it begins."""
    source = source_of(paths)
    vectorizer = vectorizer or TextVectorizer()
    counts_words = not vectorizer.words
    working = READ_BLOCKS * BLOCK_BYTES + processes * (OWN_BYTES + (AHEAD + 1) * PIECE_BYTES)
    needed = rss_bytes() + working + counts_words * 2 * BYTES_PER_WORD * MOST_WORDS
    per_name = NAME_BYTES + (processes - 1) * COPIED_BYTES
    more = f"{per_name} bytes for each label{' and each word that is kept' * counts_words}"
    say(f"memory: at most about {format_bytes(needed)} in {processes} process{'es' * (processes > 1)}, and {more}")
    check_memory(needed, f"{source}: conversion", "use fewer threads")

    if progress.earlier is None:
        rows, names = _count(paths, read, folder, vectorizer if counts_words else None, label_names, processes)
        progress.counted(rows, names, vectorizer)
    else:
        rows, names = progress.earlier.rows, progress.earlier.names
        progress.earlier.fill(vectorizer)
        say(f"goes on with an interrupted conversion, of which {progress.pieces:,} pieces are written")
    number_of = {name: number for number, name in enumerate(names)}
    known = len(names) + len(vectorizer.words)
    say(f"{rows:,} rows, {len(vectorizer.words):,} words that are kept, {len(names):,} labels")
    needed = rss_bytes() + working + known * per_name
    check_memory(needed, f"{source}: the words and labels", "raise min_df, or bound them by max_features")

    vectorizer.column_of()  # made once, before other processes get it
    left = islice(_pieces(paths, read), progress.pieces, None)
    for piece in in_order(_Write(vectorizer, number_of), left, processes):
        for rows_of, files in zip(piece, (x, y), strict=True):
            files.append(rows_of.indptr, rows_of.indices, rows_of.values)
        progress.wrote_piece()
    if (written := x.so_far()["rows"]) != rows:
        raise DataError(f"{source}: changed while it was read: {rows:,} rows at first, {written:,} later")
    return Dataset(
        x.finish(rows, len(vectorizer.words)), y.finish(rows, len(names)), names, vectorizer.words, vectorizer, source,
        unknown_labels=0 if label_names is None else len(names) - len(label_names), layout=layout,
    )  # fmt: skip


def _count(
    paths: Sequence[str | Path], read: Reader, folder: Path, vectorizer: TextVectorizer | None,
    label_names: Sequence[str] | None, processes: int,
) -> tuple[int, list[str]]:  # fmt: skip
    """The first pass: the number of rows and the names of labels; a vectorizer learns its words."""
    source = source_of(paths)
    words: WordCounts | None
    with tempfile.TemporaryDirectory(dir=folder, prefix="words-") as temporary:
        words = WordCounts(Path(temporary)) if vectorizer is not None else None
        labels: Counter[str] = Counter()
        rows = 0
        for count in in_order(_Count(vectorizer), _pieces(paths, read), processes):
            rows += count.rows
            labels.update(count.labels)
            if words is not None:
                words.add(count.words)
        if rows == 0:
            raise DataError(f"{source}: {NO_ROWS}")
        if words is not None and vectorizer is not None:
            try:
                vectorizer.learn(words.sums(), rows)
            except DataError as error:
                raise DataError(f"{source}: {error}") from None
            del words
    return rows, number_names(labels, label_names)[0]


class _Counts:
    """Of a piece: its rows, and in how many of them each label and each word is."""

    def __init__(self, rows: int, labels: Counter[str], words: Counter[str]) -> None:
        self.rows, self.labels, self.words = rows, labels, words


class _Count:
    """The first pass over a piece; without a vectorizer words are not counted."""

    def __init__(self, vectorizer: TextVectorizer | None) -> None:
        self._vectorizer = vectorizer

    def __call__(self, piece: Piece) -> _Counts:
        labels = Counter(label for of_row, _ in piece for label in of_row)
        words = Counter[str]()
        if self._vectorizer is not None:
            words = self._vectorizer.document_frequencies(text for _, text in piece)
        return _Counts(len(piece), labels, words)


class _Write:
    """The second pass: a piece as rows of numbers."""

    def __init__(self, vectorizer: TextVectorizer, number_of: Mapping[str, int]) -> None:
        self._vectorizer, self._number_of = vectorizer, number_of

    def __call__(self, piece: Piece) -> tuple[SparseRows, SparseRows]:
        unknown = next((name for labels, _ in piece for name in labels if name not in self._number_of), None)
        if unknown is not None:
            raise DataError(f"label {unknown!r} was not there at first: the data changed while it was read")
        x = self._vectorizer.transform_rows(text for _, text in piece)
        return x, label_rows([labels for labels, _ in piece], self._number_of)


def _pieces(paths: Iterable[str | Path], read: Reader) -> Iterator[Piece]:
    """Rows of all files, so many at a time; files without rows are refused."""
    for path in paths:
        piece: Piece = []
        characters = number = 0
        for row in read(path):
            number += 1
            piece.append(row)
            characters += sum(len(part) for part, _ in parts_of(row[1]))
            if len(piece) == PIECE_ROWS or characters >= PIECE_CHARACTERS:
                yield piece
                piece, characters = [], 0
        if number == 0:
            raise DataError(f"{path}: {NO_ROWS}")
        if piece:
            yield piece
