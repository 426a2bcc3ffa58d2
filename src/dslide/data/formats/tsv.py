"""Text with labels: lines of `label label<TAB>text`, or these two among other columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dslide.data.dataset import Dataset
from dslide.data.files import decode_lines, line_blocks
from dslide.data.rows import SparseRows
from dslide.data.text import TextVectorizer
from dslide.errors import ConfigError, DataError
from dslide.util.csr import indptr_of

USUAL_COLUMNS = (1, 2)  # of labels and text, counted from 1


def read_tsv(
    path: str | Path,
    vectorizer: TextVectorizer | None = None,
    label_names: Sequence[str] | None = None,
    columns: tuple[int | None, int | None] = (None, None),
) -> Dataset:
    """Rows of a file: texts vectorized (by a new vectorizer if none is given), labels numbered. Without `label_names`
    by falling frequency, then by name. With them, other labels get the numbers after: a model can't predict those, but
    recall has to count them.

    `columns` are those of labels and text, counted from 1. None: as in the file that the vectorizer was learned from,
    or 1 and 2; if both are None and the vectorizer knows none, the file must have these two and no others."""
    chosen = _chosen(columns, None if vectorizer is None else vectorizer.file_columns)
    labels, texts = _read_columns(path, chosen)
    counts = Counter(label for row in labels for label in row)
    new = sorted(counts.keys() - set(label_names or ()), key=lambda label: (-counts[label], label))
    names = [*(label_names or ()), *new]
    number_of = {name: number for number, name in enumerate(names)}
    if len(number_of) < len(names):
        raise DataError("label_names: a name occurs more than once")
    indices = np.fromiter((number_of[label] for row in labels for label in row), np.int32)
    indptr = indptr_of(np.array([len(row) for row in labels]))
    y = sp.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=(len(labels), len(names)))
    try:
        if vectorizer is None or not vectorizer.words:
            vectorizer = vectorizer or TextVectorizer()
            x = vectorizer.fit_transform(texts)
            vectorizer.file_columns = chosen
        else:
            x = vectorizer.transform(texts)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    unknown = 0 if label_names is None else len(new)
    return Dataset(x, SparseRows.from_scipy(y), names, vectorizer.words, vectorizer, str(path), unknown_labels=unknown)


def _chosen(given: tuple[int | None, int | None], known: tuple[int, int] | None) -> tuple[int, int] | None:
    """The columns of labels and text; None: the file has only these two."""
    if given == (None, None):
        return known
    label, text = (column or usual for column, usual in zip(given, known or USUAL_COLUMNS, strict=True))
    if label == text:
        raise ConfigError(f"label_column, text_column: labels and text can't both be in column {label}")
    return label, text


def _read_columns(path: str | Path, chosen: tuple[int, int] | None) -> tuple[list[list[str]], list[str]]:
    labels: list[list[str]] = []
    texts: list[str] = []
    blank: int | None = None  # the first blank line since the last row; allowed if no row follows
    label_column, text_column = chosen or USUAL_COLUMNS
    width = 0 if chosen else 2  # columns of every line; 0: as many as the first line has
    for first, block in line_blocks(path):
        for line, content in enumerate(decode_lines(path, first, block), first):
            columns = content.split("\t")
            if width == 0 and len(columns) >= max(label_column, text_column):
                width = len(columns)
            if len(columns) == width:
                if blank is not None:
                    raise DataError(f"{path}, line {blank}: the line is blank, expected labels, a tab and a text")
                labels.append(columns[label_column - 1].split())
                texts.append(columns[text_column - 1])
            elif content.strip():
                raise DataError(f"{path}, line {line}: {_unexpected(len(columns), chosen, width)}")
            elif blank is None:
                blank = line
    if not texts:
        raise DataError(f"{path}: there are no rows")
    return labels, texts


def _unexpected(found: int, chosen: tuple[int, int] | None, width: int) -> str:
    """The message for a line with a wrong number of columns."""
    if chosen is None:
        hint = "; choose among more columns with label_column and text_column" if found > 2 else ""
        return f"expected labels, one tab and a text, found {found - 1} tabs{hint}"
    if width:
        return f"expected {width} columns between tabs as in line 1, found {found}"
    return f"expected labels in column {chosen[0]} and text in column {chosen[1]}, found {found} columns between tabs"
