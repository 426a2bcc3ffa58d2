"""Text with labels: lines of `label label<TAB>text`, or these two among other columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dslide.data.dataset import Dataset
from dslide.data.files import decode_lines, line_blocks
from dslide.data.formats.labelled_text import labelled_text
from dslide.data.text import TextVectorizer
from dslide.errors import ConfigError, DataError

USUAL_COLUMNS = (1, 2)  # of labels and text, counted from 1


def read_tsv(
    path: str | Path,
    vectorizer: TextVectorizer | None = None,
    label_names: Sequence[str] | None = None,
    columns: tuple[int | None, int | None] = (None, None),
) -> Dataset:
    """Rows of a file, as `labelled_text` makes them.

    `columns` are those of labels and text, counted from 1. None: as in the file that the vectorizer was learned from,
    or 1 and 2; if both are None and the vectorizer knows none, the file must have these two and no others."""
    chosen = _chosen(columns, None if vectorizer is None else vectorizer.file_columns)
    labels, texts = _read_columns(path, chosen)
    return labelled_text(path, labels, texts, vectorizer, label_names, chosen)


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
