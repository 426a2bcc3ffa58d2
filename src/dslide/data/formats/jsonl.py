"""JSON Lines: an object `{"text": ..., "labels": [...]}` in every line, or with other names for these two. Other keys
are ignored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dslide.data.files import decode_lines, line_blocks
from dslide.data.formats.labelled_text import Row
from dslide.data.formats.table import one_line
from dslide.data.layout import Layout
from dslide.data.text import Text
from dslide.errors import DataError


def jsonl_rows(path: str | Path, layout: Layout | None = None, known: Layout | None = None) -> Iterator[Row]:
    """Names of labels and the text of every row. Labels are texts or whole numbers, and may have blanks; a row without
    "labels" has none. Of several keys of text a row may lack some, but not all. Blank lines are skipped."""
    layout = (layout or Layout()).over(known)
    keys = [(column, weight) for column, weight in layout.text_columns() if isinstance(column, str)]
    keys = keys or [("text", 1)]  # tables may have numbers
    missing = {key for key, _ in keys}  # so far, in all rows
    label_key = layout.label_column if isinstance(layout.label_column, str) else "labels"
    for first, block in line_blocks(path):
        for line, content in enumerate(decode_lines(path, first, block), first):
            if content.strip():
                where = f"{path}, line {line}"
                row = _parse(where, content)
                missing -= row.keys()
                yield names_of_labels(f"{where}: {label_key}", row.get(label_key, [])), _texts(where, row, keys)
    if len(keys) > 1 and missing:
        raise DataError(f"{path}: text_column: no line has the key {min(missing)!r}")


def _parse(where: str, content: str) -> dict[str, Any]:
    try:
        row = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with text and labels, not {type(row).__name__}")
    return row


def _texts(where: str, row: dict[str, Any], keys: Sequence[tuple[str, int]]) -> Text:
    present = [(key, weight) for key, weight in keys if row.get(key) is not None] or keys[:1]
    texts = tuple((_text(where, row, key), weight) for key, weight in present)
    return texts[0][0] if len(keys) == 1 and keys[0][1] == 1 else texts


def _text(where: str, row: dict[str, Any], key: str) -> str:
    text = row.get(key)
    if not isinstance(text, str):
        shown = "there is none" if key not in row else f"not {type(text).__name__}"
        raise DataError(f"{where}: {key}: expected a text, {shown}")
    return text


def names_of_labels(where: str, labels: Any) -> list[str]:
    """Names of labels, each once, out of a list of texts or whole numbers, or one of these."""
    labels = [labels] if isinstance(labels, (str, int)) else labels
    if not isinstance(labels, list) or not all(type(label) in (str, int) for label in labels):
        raise DataError(f"{where}: expected a list of texts or whole numbers")
    return list(dict.fromkeys(_checked_name(where, label) for label in labels))


def _checked_name(where: str, label: str | int) -> str:
    """The name as one line, which it is in files and on the terminal."""
    name = one_line(str(label))
    if not name or any("\ud800" <= character <= "\udfff" for character in name):
        raise DataError(f"{where}: expected names of labels, not {label!r}")
    return name
