"""Files of lines with columns, with or without a header: comma- or tab-separated and the like."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from dslide.data.files import MAX_LINE_BYTES, decode_lines, line_blocks
from dslide.data.layout import Column
from dslide.errors import ConfigError, DataError

GUESSED = ("\t", "::", ",", ";", "|")  # separators, in the order in which they are tried
QUOTED = (",", ";")  # separators with which cells may be in quotes, as spreadsheets write them


class Columns(ABC):
    """A file of rows with columns."""

    path: str | Path
    unit: str  # what a row is, in messages
    separator: str
    width: int  # columns
    has_header: bool
    names: list[str] | None  # of the columns

    @abstractmethod
    def rows(self, skip_blank: bool, places: Collection[int]) -> Iterator[tuple[int, Sequence[str]]]:
        """Number and cells of every row; those that are not in `places` may be anything."""

    def find(self, option: str, column: Column | None, usual: Collection[str] = ()) -> int | None:
        """The place, from 0 on, of the column that an option gives; if it gives none, of the first with a usual name;
        None if there is no such column. ConfigError if a given one does not exist."""
        if isinstance(column, int):
            if column > self.width:
                raise ConfigError(f"{option}: {self.path} has {self.width} columns, and none with number {column}")
            return column - 1
        names = self.names or []
        if column is None:
            return next((place for place, name in enumerate(names) if bare_name(name) in usual), None)
        if column not in names:
            has = f"only {', '.join(names)}" if self.names else "as it has no header"
            raise ConfigError(f"{option}: {self.path} has no column {column!r}, {has}")
        if names.count(column) > 1:
            raise ConfigError(
                f"{option}: {self.path} has {names.count(column)} columns {column!r}; give a number, from 1"
            )
        return names.index(column)


class Table(Columns):
    """A file of lines with columns. `separator` None: guessed from the first line; `header` says whether that has names
    of columns."""

    unit = "line"

    def __init__(self, path: str | Path, separator: str | None, header: bool | Callable[[list[str]], bool]) -> None:
        self.path, line = path, first_line(path)
        self.separator = separator or guess_separator(line)
        number, cells = next(((n, c) for n, c in self._lines() if any(map(str.strip, c))), (0, []))
        if number > 1 and not line.strip():
            raise DataError(f"{path}, line 1: the line is blank, expected columns")
        if number == 0:
            raise DataError(f"{path}: there are no rows")
        self.width = len(cells)
        self.has_header = header if isinstance(header, bool) else header(cells)
        self.names = [plain_name(cell) for cell in cells] if self.has_header else None

    def rows(self, skip_blank: bool, places: Collection[int]) -> Iterator[tuple[int, Sequence[str]]]:
        """Line number and cells of every line below the header; lines must have as many columns as the first. Blank
        lines are skipped, or else allowed at the end only."""
        lines = self._lines()
        if self.has_header:
            next(lines)
        blank: int | None = None
        for number, cells in lines:
            if len(cells) == self.width and (self.width > 1 or cells[0].strip()):
                if blank is not None:
                    raise DataError(f"{self.path}, line {blank}: the line is blank, expected {self.width} columns")
                yield number, cells
            elif any(cell.strip() for cell in cells):
                expected = f"expected {self.width} columns as in line 1, found {len(cells)}"
                raise DataError(f"{self.path}, line {number}: {expected}")
            elif blank is None and not skip_blank:
                blank = number

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Number and cells of every line; of a row over several lines, the number of the last."""
        if self.separator not in QUOTED:
            for first, block in line_blocks(self.path):
                for number, line in enumerate(decode_lines(self.path, first, block), first):
                    yield number, line.split(self.separator)
            return
        csv.field_size_limit(MAX_LINE_BYTES)
        reader = csv.reader(self._text(), delimiter=self.separator, strict=True)
        try:
            for cells in reader:
                yield reader.line_num, cells or [""]
        except csv.Error as error:
            raise DataError(f"{self.path}, line {reader.line_num}: can't be read as a table: {error}") from None

    def _text(self) -> Iterator[str]:
        for first, block in line_blocks(self.path):
            for line in decode_lines(self.path, first, block):
                yield line + "\n"


def first_line(path: str | Path) -> str:
    """The first line of a file, at most 64 KB of it."""
    first, block = next(line_blocks(path, block_bytes=1 << 16))
    return decode_lines(path, first, block[: block.index(b"\n") + 1])[0]


def split_first_line(path: str | Path) -> list[str]:
    """The first line as cells, with the separator that it seems to have; none if it is no text."""
    try:
        line = first_line(path)
    except DataError:
        return []
    try:
        return next(csv.reader([line], delimiter=guess_separator(line)[0]), [])
    except csv.Error:
        return []


def guess_separator(line: str) -> str:
    """What separates the columns of a line: a tab if it has one."""
    found = [separator for separator in GUESSED if separator in line]
    if found[:1] in (["\t"], ["::"]):
        return found[0]
    return max(found, key=line.count, default="\t")


def is_number(cell: str) -> bool:
    """Whether a cell has a number rather than a name."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def plain_name(cell: str) -> str:
    """The name of a column, without the type that RecBole adds, as in user_id:token."""
    return cell.strip().partition(":")[0]


def bare_name(name: str) -> str:
    """A name of a column to compare with usual ones: user for user_id, userId or User."""
    return name.strip().lower().removesuffix("id").rstrip("_ -")


def as_names(cells: Sequence[str]) -> list[str]:
    """The cells of a first line as names of columns to compare with usual ones."""
    return [bare_name(plain_name(cell)) for cell in cells]


def one_line(name: str) -> str:
    """A name as it can be written to files of names."""
    return " ".join(name.split())
