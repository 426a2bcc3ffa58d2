"""Text with labels: lines of `label label<TAB>text`, or these two among other columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dslide.data.dataset import Dataset
from dslide.data.formats.labelled_text import labelled_text
from dslide.data.formats.table import Table, as_names, first_line, guess_separator, one_line
from dslide.data.layout import Layout
from dslide.data.text import TextVectorizer
from dslide.errors import ConfigError, DataError

LABEL_NAMES = frozenset(
    {"label", "labels", "tag", "tags", "category", "categories", "class", "classes", "target", "targets"}
)
TEXT_NAMES = frozenset({"text", "texts", "sentence", "content", "body", "document", "abstract", "description"})


def read_tsv(
    path: str | Path,
    vectorizer: TextVectorizer | None = None,
    label_names: Sequence[str] | None = None,
    layout: Layout | None = None,
    known: Layout | None = None,
) -> Dataset:
    """Rows of a file, as `labelled_text` makes them.

    The layout has what is given, `known` that of the file a model was trained on. If columns are left open, they are
    those with usual names in the header, or else 1 and 2, and then the file must have these two and no others. A file
    for a known model may lack the column of labels."""
    given = layout or Layout()
    layout = given.over(known)
    table = Table(path, layout.separator or _separator(path), _has_header(layout))
    label, text = _places(table, layout, may_lack_labels=known is not None and given.label_column is None)
    labels: list[list[str]] = []
    texts: list[str] = []
    split, separator = str.split, layout.label_separator
    for _, cells in table.rows(skip_blank=False):
        if label is None:
            labels.append([])
        elif separator is None:
            labels.append(split(cells[label]))
        else:
            labels.append([name for part in cells[label].split(separator) if (name := one_line(part))])
        texts.append(cells[text])
    if not texts:
        raise DataError(f"{path}: there are no rows")
    return labelled_text(path, labels, texts, vectorizer, label_names, layout)


def is_labelled_text(cells: Sequence[str]) -> bool:
    """Whether a first line names columns of labels and of texts."""
    names = as_names(cells)
    return any(name in LABEL_NAMES for name in names) and any(name in TEXT_NAMES for name in names)


def _separator(path: str | Path) -> str:
    """That of a file whose layout says none: a tab, unless the first line has none and the name does not promise it."""
    return "\t" if ".tsv" in Path(path).suffixes else guess_separator(first_line(path))


def _has_header(layout: Layout) -> bool | Callable[[list[str]], bool]:
    """Whether there is a header, or what tells it by the first line."""
    if layout.header is not None:
        return layout.header
    named = any(isinstance(column, str) for column in (layout.label_column, layout.text_column))
    return True if named else is_labelled_text


def _places(table: Table, layout: Layout, may_lack_labels: bool) -> tuple[int | None, int]:
    """The columns of labels (None: there is none) and of texts."""
    given, names = (layout.label_column, layout.text_column), table.names or []
    if may_lack_labels and isinstance(given[0], str) and given[0] not in names:
        label = None
    else:
        label = table.find("label_column", given[0], LABEL_NAMES)
    text = table.find("text_column", given[1], TEXT_NAMES)
    if label is None and text is not None and may_lack_labels and table.names:
        return None, text
    if label is None and text is None and table.width != 2:
        raise DataError(f"{table.path}, line 1: {_unexpected(table)}")
    if label is None:
        label = _other(table, "label_column", 0, text)
    if text is None:
        text = _other(table, "text_column", 1, label)
    if label == text:
        both = f"labels and text can't both be in column {label + 1}"
        raise ConfigError(f"label_column, text_column: {both}")
    return label, text


def _other(table: Table, option: str, usual: int, other: int | None) -> int:
    """The column that is left open: its usual place, or the other one of two; refused if a header has more."""
    if table.width == 2 and other is not None and table.names:
        return 1 - other
    if table.names and other is not None:
        raise ConfigError(f"{option}: {table.path} has the columns {', '.join(table.names)}; name one of them")
    if usual >= table.width:
        raise DataError(f"{table.path}, line 1: {_unexpected(table)}")
    return usual


def _unexpected(table: Table) -> str:
    """The message for a first line with a wrong number of columns."""
    between = {"\t": "tabs", ",": "commas", ";": "semicolons"}.get(table.separator, repr(table.separator))
    hint = "; choose among more columns with label_column and text_column" if table.width > 2 else ""
    return f"expected labels and a text, two columns between {between}, found {table.width}{hint}"
