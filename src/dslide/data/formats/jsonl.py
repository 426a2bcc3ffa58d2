"""JSON Lines: an object `{"text": ..., "labels": [...]}` in every line, or with other names for these two. Other keys
are ignored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dslide.data.dataset import Dataset
from dslide.data.files import decode_lines, line_blocks
from dslide.data.formats.labelled_text import labelled_text
from dslide.data.formats.table import one_line
from dslide.data.layout import Layout
from dslide.data.text import TextVectorizer
from dslide.errors import DataError


def read_jsonl(
    path: str | Path,
    vectorizer: TextVectorizer | None = None,
    label_names: Sequence[str] | None = None,
    layout: Layout | None = None,
) -> Dataset:
    """Rows of a file, as `labelled_text` makes them. Labels are texts or whole numbers, and may have blanks; a row
    without "labels" has none. Blank lines are skipped."""
    layout = layout or Layout()
    text_key = layout.text_column if isinstance(layout.text_column, str) else "text"  # tables may have numbers
    label_key = layout.label_column if isinstance(layout.label_column, str) else "labels"
    labels: list[list[str]] = []
    texts: list[str] = []
    for first, block in line_blocks(path):
        for line, content in enumerate(decode_lines(path, first, block), first):
            if content.strip():
                row = _parse(f"{path}, line {line}", content)
                texts.append(_text(f"{path}, line {line}", row, text_key))
                labels.append(_labels(f"{path}, line {line}", row, label_key))
    if not texts:
        raise DataError(f"{path}: there are no rows")
    return labelled_text(path, labels, texts, vectorizer, label_names, layout)


def _parse(where: str, content: str) -> dict[str, Any]:
    try:
        row = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with text and labels, not {type(row).__name__}")
    return row


def _text(where: str, row: dict[str, Any], key: str) -> str:
    text = row.get(key)
    if not isinstance(text, str):
        shown = "there is none" if key not in row else f"not {type(text).__name__}"
        raise DataError(f"{where}: {key}: expected a text, {shown}")
    return text


def _labels(where: str, row: dict[str, Any], key: str) -> list[str]:
    labels = row.get(key, [])
    labels = [labels] if isinstance(labels, (str, int)) else labels
    if not isinstance(labels, list) or not all(type(label) in (str, int) for label in labels):
        raise DataError(f"{where}: {key}: expected a list of texts or whole numbers")
    return list(dict.fromkeys(_checked_name(f"{where}: {key}", label) for label in labels))


def _checked_name(where: str, label: str | int) -> str:
    """The name as one line, which it is in files and on the terminal."""
    name = one_line(str(label))
    if not name or any("\ud800" <= character <= "\udfff" for character in name):
        raise DataError(f"{where}: expected names of labels, not {label!r}")
    return name
