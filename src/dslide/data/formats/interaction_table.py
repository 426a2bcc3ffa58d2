"""Interactions as a table: a line with a user and an item for every interaction, as `user,item,rating`, with or without
a header. Users and items are known by name. RecBole's `.inter` files are such tables."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dslide.data.dataset import Dataset
from dslide.data.formats.labelled_text import number_names
from dslide.data.formats.parquet import ParquetTable, is_parquet
from dslide.data.formats.table import Columns, Table, as_names, first_line, guess_separator, is_number, one_line
from dslide.data.items import item_features
from dslide.data.layout import Layout
from dslide.data.rows import SparseRows
from dslide.errors import ConfigError, DataError

USER_NAMES = frozenset({"user", "customer", "reviewer", "visitor"})
ITEM_NAMES = frozenset({"item", "product", "movie", "book", "article", "track", "song"})
TIME_NAMES = frozenset({"timestamp", "time", "date", "datetime"})

Doubles = npt.NDArray[np.float64]


def is_table(path: str | Path, layout: Layout) -> bool:
    """Whether interactions are a table rather than lines of numbers: by what is given, else by the first line."""
    if layout.to_dict() or is_parquet(path):
        return True
    line = first_line(path)
    cells = line.split(guess_separator(line))
    return len(cells) > 1 and ("\t" not in line or not is_number(cells[0]))


def names_users_and_items(cells: Sequence[str]) -> bool:
    """Whether a first line names columns of users and of items."""
    names = as_names(cells)
    return any(name in USER_NAMES for name in names) and any(name in ITEM_NAMES for name in names)


def read_table(
    path: str | Path,
    layout: Layout,
    item_names: Sequence[str] | None = None,
    user_names: Sequence[str] | None = None,
) -> Dataset:
    """A row for each user, in the order of their first lines. An item counts once in a row; with a column of weights,
    the sum is the label's weight. Items that are not in `item_names`, and users that are not in `user_names`, get the
    numbers after."""
    table: Columns = ParquetTable(path) if is_parquet(path) else Table(path, layout.separator, _has_header(layout))
    user, item = _places(table, layout)
    weight = table.find("weight_column", layout.weight_column) if layout.weight_column is not None else None
    time = table.find("time_column", layout.time_column, TIME_NAMES)
    users, items = _Numbers(), _Numbers()
    weights, times = array("d"), array("d")
    used = {place for place in (user, item, weight, time) if place is not None}
    for number, cells in table.rows(skip_blank=True, places=used):
        where = f"{path}, {table.unit} {number}"
        names = one_line(cells[user]), one_line(cells[item])
        if not all(names):
            raise DataError(f"{where}: expected a user and an item, but one of them is empty")
        if weight is not None:
            worth = _number(where, cells[weight])
            if worth == 0:
                continue
            weights.append(worth)
        if time is not None:
            moment = _moment(cells[time])
            if moment is None:
                if layout.time_column is not None:
                    shown = f"expected a number or a date like 2024-05-31, not {cells[time]!r}"
                    raise DataError(f"{where}: {shown}")
                time = None  # it only looked like a column of times
            else:
                times.append(moment)
        users.add(names[0])
        items.add(names[1])
    if not users.found:
        raise DataError(f"{path}: there are no interactions{' after the header' * table.has_header}")
    if (
        layout.header is None
        and isinstance(table, Table)
        and table.names is not None
        and not names_users_and_items(table.names)
    ):
        _refuse_unclear_header(table, (users, user), (items, item))
    return _dataset(
        path, layout, users, items, np.array(weights) if weight is not None else None,
        np.array(times) if time is not None else None, item_names, user_names,
    )  # fmt: skip


class _Numbers:
    """Names as numbers, in the order in which they come."""

    def __init__(self) -> None:
        self.number_of: dict[str, int] = {}
        self.found = array("i")  # the number of each name that was added

    def add(self, name: str) -> None:
        self.found.append(self.number_of.setdefault(name, len(self.number_of)))

    def array(self) -> npt.NDArray[np.int32]:
        return np.array(self.found, np.int32)


def _dataset(
    path: str | Path, layout: Layout, users: _Numbers, items: _Numbers, weights: Doubles | None, times: Doubles | None,
    item_names: Sequence[str] | None, user_names: Sequence[str] | None,
) -> Dataset:  # fmt: skip
    rows, by_line = users.array().astype(np.int64), items.array()
    names, number_of = number_names(dict(zip(items.number_of, np.bincount(by_line).tolist(), strict=True)), item_names)
    columns = np.fromiter((number_of[name] for name in items.number_of), np.int64)[by_line]
    pairs, place = np.unique(rows * len(names) + columns, return_inverse=True)
    values = np.ones(len(pairs)) if weights is None else np.bincount(place, weights)
    matrix = sp.csr_matrix(
        (values.astype(np.float32), np.divmod(pairs, len(names))), shape=(len(users.number_of), len(names))
    )
    ranks = None
    if times is not None:  # of the newest line of each pair; of equal times the later line is newer
        line_rank = np.empty(len(times), np.int64)
        line_rank[np.argsort(times, kind="stable")] = np.arange(len(times))
        newest = np.zeros(len(pairs), np.int64)
        np.maximum.at(newest, place, line_rank)
        ranks = np.empty(len(pairs), np.int64)
        ranks[np.argsort(newest)] = np.arange(len(pairs))
    y = SparseRows.from_scipy(matrix)
    number_of_user = {name: number for number, name in enumerate(user_names or ())}
    for name in users.number_of:
        number_of_user.setdefault(name, len(number_of_user))
    return Dataset(
        item_features(y, y.column_counts()), y, label_names=names, feature_names=names, source=str(path),
        users=np.fromiter((number_of_user[name] for name in users.number_of), np.int32, len(users.number_of)),
        user_names=list(number_of_user), times=ranks, layout=layout,
        unknown_labels=0 if item_names is None else len(names) - len(item_names),
    )  # fmt: skip


def _has_header(layout: Layout) -> bool | Callable[[list[str]], bool]:
    """Whether there is a header, or what tells it by the first line: that it has no number."""
    if layout.header is not None:
        return layout.header
    if any(isinstance(column, str) for column in layout.columns().values()):
        return True
    return lambda cells: names_users_and_items(cells) or not any(map(is_number, cells))


def _places(table: Columns, layout: Layout) -> tuple[int, int]:
    """Where users and items are: in the given columns, else in those with usual names, else in the first two."""
    if table.width < 2:
        raise DataError(f"{table.path}, line 1: expected columns of users and items, found a single column")
    user = table.find("user_column", layout.user_column, USER_NAMES)
    item = table.find("item_column", layout.item_column, ITEM_NAMES)
    user, item = 0 if user is None else user, 1 if item is None else item
    if user == item:
        shown = repr(table.names[user]) if table.names else user + 1
        both = f"users and items can't both be in column {shown}"
        raise ConfigError(f"user_column, item_column: {both} of {table.path}; name the columns")
    return user, item


def _refuse_unclear_header(table: Table, *columns: tuple[_Numbers, int]) -> None:
    """DataError if what was taken for a header occurs among users or items, so that it is an interaction."""
    assert table.names is not None
    for numbers, place in columns:
        if (name := table.names[place]) in numbers.number_of:
            found = f"{name!r} is in other lines too: say with header whether the first line has names of columns"
            raise DataError(f"{table.path}, line 1: {found}")


def _number(where: str, cell: str) -> float:
    try:
        worth = float(cell)
    except ValueError:
        worth = float("nan")
    if not 0 <= worth < float("inf"):
        raise DataError(f"{where}: expected a weight, a number from 0 on, not {cell!r}")
    return worth


def _moment(cell: str) -> float | None:
    """A time in seconds, or in whatever unit numbers have; None if it is none. Dates without a zone are in UTC."""
    try:
        moment = float(cell)
    except ValueError:
        try:
            date = datetime.fromisoformat(cell.strip().replace("Z", "+00:00"))
        except ValueError:
            return None
        moment = (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    return moment if abs(moment) < float("inf") else None
