"""Text with labels: lines of `label label<TAB>text`, or these two among other columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dslide.data.formats.labelled_text import Row
from dslide.data.formats.table import Columns, Table, as_names, first_line, guess_separator, one_line
from dslide.data.layout import Layout
from dslide.errors import ConfigError, DataError

LABEL_NAMES = frozenset(
    {"label", "labels", "tag", "tags", "category", "categories", "class", "classes", "target", "targets"}
    | {"subjects", "topics", "keywords"}
)
TEXT_NAMES = frozenset({"text", "texts", "sentence", "content", "body", "document", "abstract", "description"})
TITLE_NAMES = frozenset({"title", "titles"})  # of texts, where there is no longer one


def tsv_rows(path: str | Path, layout: Layout | None = None, known: Layout | None = None) -> Iterator[Row]:
    """Names of labels and the text of every row.

    The layout has what is given, `known` that of the file a model was trained on. If columns are left open, they are
    those with usual names in the header, or else 1 and 2, and then the file must have these two and no others. A file
    for a known model may lack the column of labels."""
    given = layout or Layout()
    layout = given.over(known)
    table = Table(path, layout.separator or _separator(path), _has_header(layout))
    label, texts = places_of(table, layout, may_lack_labels=known is not None and given.label_column is None)
    alone = texts[0][0] if len(texts) == 1 and texts[0][1] == 1 else None
    for _, cells in table.rows(skip_blank=False, places=()):
        labels = [] if label is None else split_labels(cells[label], layout.label_separator)
        text = cells[alone] if alone is not None else tuple((cells[place], weight) for place, weight in texts)
        yield labels, text


def split_labels(cell: str, separator: str | None) -> list[str]:
    """The labels in a cell, between blanks unless a separator is given."""
    if separator is None:
        return cell.split()
    return [name for part in cell.split(separator) if (name := one_line(part))]


def is_labelled_text(cells: Sequence[str]) -> bool:
    """Whether a first line names columns of labels and of texts."""
    names = as_names(cells)
    return any(name in LABEL_NAMES for name in names) and any(name in TEXT_NAMES | TITLE_NAMES for name in names)


def _separator(path: str | Path) -> str:
    """That of a file whose layout says none: a tab, unless the first line has none and the name does not promise it."""
    return "\t" if ".tsv" in Path(path).suffixes else guess_separator(first_line(path))


def _has_header(layout: Layout) -> bool | Callable[[list[str]], bool]:
    """Whether there is a header, or what tells it by the first line."""
    if layout.header is not None:
        return layout.header
    columns = [layout.label_column, *(column for column, _ in layout.text_columns())]
    named = any(isinstance(column, str) for column in columns)
    return True if named else is_labelled_text


def places_of(table: Columns, layout: Layout, may_lack_labels: bool) -> tuple[int | None, list[tuple[int, int]]]:
    """The columns of labels (None: there is none) and of texts, these with their weights."""
    given, names = layout.label_column, table.names or []
    if may_lack_labels and isinstance(given, str) and given not in names:
        label = None
    else:
        label = table.find("label_column", given, LABEL_NAMES)
    places = [(table.find("text_column", column), weight) for column, weight in layout.text_columns()]
    texts = [(place, weight) for place, weight in places if place is not None]  # all of them, which are given
    usual = table.find("text_column", None, TEXT_NAMES)
    if usual is None:
        usual = table.find("text_column", None, TITLE_NAMES)
    if not texts and usual is not None:
        texts = [(usual, 1)]
    text = texts[0][0] if texts else None
    if label is None and text is not None and may_lack_labels and table.names:
        return None, texts
    if label is None and text is None and table.width != 2:
        raise DataError(_unexpected(table))
    if label is None:
        label = _other(table, "label_column", 0, text)
    if text is None:
        texts = [(_other(table, "text_column", 1, label), 1)]
    if label in (place for place, _ in texts):
        both = f"labels and text can't both be in column {label + 1}"
        raise ConfigError(f"label_column, text_column: {both}")
    return label, texts


def _other(table: Columns, option: str, usual: int, other: int | None) -> int:
    """The column that is left open: its usual place, or the other one of two; refused if a header has more."""
    if table.width == 2 and other is not None and table.names:
        return 1 - other
    if table.names and other is not None:
        raise ConfigError(f"{option}: {table.path} has the columns {', '.join(table.names)}; name one of them")
    if usual >= table.width:
        raise DataError(_unexpected(table))
    return usual


def _unexpected(table: Columns) -> str:
    """The message for a first line with a wrong number of columns."""
    if not table.separator:
        return f"{table.path}: has the columns {', '.join(table.names or [])}; give label_column and text_column"
    between = {"\t": "tabs", ",": "commas", ";": "semicolons"}.get(table.separator, repr(table.separator))
    hint = "; choose among more columns with label_column and text_column" if table.width > 2 else ""
    return f"{table.path}, line 1: expected labels and a text, two columns between {between}, found {table.width}{hint}"
