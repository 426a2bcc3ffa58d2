"""Texts with labels in a Parquet file: a column of texts, or several, and one of labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dslide.data.formats.jsonl import names_of_labels
from dslide.data.formats.labelled_text import Row
from dslide.data.formats.parquet import ParquetTable
from dslide.data.formats.tsv import places_of, split_labels
from dslide.data.layout import Layout
from dslide.errors import DataError


def parquet_rows(path: str | Path, layout: Layout | None = None, known: Layout | None = None) -> Iterator[Row]:
    """Names of labels and the text of every row. Labels are a list of texts or whole numbers, which may have blanks, or
    a text that is separated as in tables, or a whole number; a missing value is none."""
    given = layout or Layout()
    layout, table = given.over(known), ParquetTable(path)
    label, texts = places_of(table, layout, may_lack_labels=known is not None and given.label_column is None)
    alone = len(texts) == 1 and texts[0][1] == 1
    used = {place for place, _ in texts} | ({label} if label is not None else set())
    for number, values in table.values(used):
        where = f"{path}, row {number}: "
        parts = tuple((_text(where + table.names[place], values[place]), weight) for place, weight in texts)
        labels = values[label] if label is not None else None
        if labels is None:
            names = []
        elif isinstance(labels, str):
            names = split_labels(labels, layout.label_separator)
        else:
            names = names_of_labels(where + table.names[label or 0], labels)
        yield names, parts[0][0] if alone else parts


def _text(where: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: expected a text, not {type(value).__name__}")
    return value
