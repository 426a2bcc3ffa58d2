"""Interactions as a table: a header, then a line with a user and an item for every interaction, as `user,item,rating`.
Users and items are known by name. RecBole's `.inter` files are such tables."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dslide.data.dataset import Dataset, item_features
from dslide.data.files import decode_lines, line_blocks
from dslide.data.formats.labelled_text import number_names
from dslide.data.rows import SparseRows
from dslide.errors import ConfigError, DataError

SEPARATORS = "\t,;"

Columns = tuple[str | None, str | None]  # names of the columns of users and items; None: as `_find` guesses


def is_table(path: str | Path) -> bool:
    """Whether the first line is a header: two or more columns, of which the first is not a number."""
    cells = _cells(_first_line(path))
    return len(cells) > 1 and not cells[0].strip().isdigit()


def read_table(
    path: str | Path,
    columns: Columns = (None, None),
    item_names: Sequence[str] | None = None,
    user_names: Sequence[str] | None = None,
) -> Dataset:
    """A row for each user, in the order of their first lines; an item counts once in a row. Items that are not in
    `item_names`, and users that are not in `user_names`, get the numbers after."""
    pairs = list(_pairs(path, columns))
    if not pairs:
        raise DataError(f"{path}: there are no interactions after the header")
    number_of_user = {name: number for number, name in enumerate(user_names or ())}
    row_of_user: dict[str, int] = {}
    for user, _ in pairs:
        number_of_user.setdefault(user, len(number_of_user))
        row_of_user.setdefault(user, len(row_of_user))
    names, number_of_item = number_names((item for _, item in pairs), item_names)
    rows = np.fromiter((row_of_user[user] for user, _ in pairs), np.int64, len(pairs))
    items = np.fromiter((number_of_item[item] for _, item in pairs), np.int32, len(pairs))
    matrix = sp.csr_matrix((np.ones(len(pairs), np.float32), (rows, items)), shape=(len(row_of_user), len(names)))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    y = SparseRows.from_scipy(matrix)
    users = np.fromiter((number_of_user[user] for user in row_of_user), np.int32, len(row_of_user))
    return Dataset(
        item_features(y, y.column_counts()), y, label_names=names, feature_names=names, source=str(path), users=users,
        user_names=list(number_of_user), unknown_labels=0 if item_names is None else len(names) - len(item_names),
    )  # fmt: skip


def _pairs(path: str | Path, columns: Columns) -> Iterator[tuple[str, str]]:
    """User and item of every line."""
    header = _first_line(path)
    reader = csv.reader(_lines(path), delimiter=_separator(header), strict=True)
    try:
        names = [name.strip().partition(":")[0] for name in next(reader)]  # RecBole adds a type, as in user_id:token
        user, item = _find(path, names, columns)
        for cells in reader:
            if len(cells) != len(names):
                if not any(cell.strip() for cell in cells):
                    continue
                expected = f"expected {len(names)} columns as in the header, found {len(cells)}"
                raise DataError(f"{path}, line {reader.line_num}: {expected}")
            pair = _one_line(cells[user]), _one_line(cells[item])
            if not all(pair):
                raise DataError(
                    f"{path}, line {reader.line_num}: expected a user and an item, but one of them is empty"
                )
            yield pair
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: can't be read as a table: {error}") from None


def _find(path: str | Path, names: list[str], columns: Columns) -> tuple[int, int]:
    """Where users and items are: in columns of the given names, else in those named user and item, or user_id or userId
    and so on, else in the first two."""
    found = []
    for place, (what, column) in enumerate(zip(("user", "item"), columns, strict=True)):
        if column is None:
            plain = [name.lower().removesuffix("id").rstrip("_ ") for name in names]
            found.append(plain.index(what) if what in plain else place)
        elif column in names:
            found.append(names.index(column))
        else:
            raise ConfigError(f"{what}_column: {path} has no column {column!r}, only {', '.join(names)}")
    if found[0] == found[1]:
        both = f"users and items can't both be in column {names[found[0]]!r}"
        raise ConfigError(f"user_column, item_column: {both} of {path}; name the columns")
    return found[0], found[1]


def _lines(path: str | Path) -> Iterator[str]:
    for first, block in line_blocks(path):
        for line in decode_lines(path, first, block):
            yield line + "\n"


def _first_line(path: str | Path) -> str:
    first, block = next(line_blocks(path, block_bytes=1 << 16))
    return decode_lines(path, first, block[: block.index(b"\n") + 1])[0]


def _separator(header: str) -> str:
    return max(SEPARATORS, key=header.count)


def _cells(line: str) -> list[str]:
    separator = _separator(line)
    return line.split(separator) if separator in line else [line]


def _one_line(name: str) -> str:
    """A name as it can be written to files of names."""
    return " ".join(name.split())
