"""Interactions of users with items: a line `user item item ...` for each user, all integers; or a table of names.

For training, features and labels of a row both are the user's items: the network learns which items go together. For
testing, labels are the held-out items and features the user's earlier ones, the history. Items of the history are not
recommended again (`Dataset.seen`)."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dslide import _core
from dslide.data.dataset import Dataset
from dslide.data.dense_rows import sparse_part
from dslide.data.files import line_blocks, quoted
from dslide.data.formats.interaction_table import is_table, read_table
from dslide.data.items import item_features
from dslide.data.layout import Layout
from dslide.data.rows import MAX_COLUMNS, RowsBuilder, SparseRows
from dslide.errors import ConfigError, DataError
from dslide.util.arrays import Ids
from dslide.util.csr import indptr_of
from dslide.util.memory import check_memory, rss_bytes

_NO_NUMBER = re.compile(rb"[^0-9 \t\r\n]")


def read_interactions(path: str | Path, items: int | None = None, threads: int | None = None) -> Dataset:
    """A row for each line, with the same items as features and as labels; duplicates in a line count once. There are
    `items` items; None: the largest number plus 1."""
    rows, owners = RowsBuilder(), []
    largest, blank_end = -1, 0
    for line, block in line_blocks(path):
        _refuse_other_words(path, line, block)
        parsed = _core.parse_rows(  # as libsvm rows: the user is the label, items are features
            block, (0, items or MAX_COLUMNS), (0, MAX_COLUMNS), False, threads=threads or 0
        )
        if parsed["fault"] is not None:
            fault, fault_line, text = parsed["fault"]
            what, end = ("a user", MAX_COLUMNS) if fault.startswith("label") else ("an item", items or MAX_COLUMNS)
            raise _not_a_number(path, line + fault_line, text, what, end)
        indptr, indices, values = parsed["x"]
        rows.append(indptr, indices, np.ones_like(values))
        with_user = np.diff(parsed["y"][0]) > 0
        users = np.full(len(with_user), -1, np.int32)
        users[with_user] = parsed["y"][1]
        owners.append(users)
        largest = max(largest, parsed["x_seen"][2])
        blank_end = parsed["blank_end"] + (blank_end if parsed["blank_end"] == parsed["rows"] else 0)
    users = np.concatenate(owners)
    users = users[: len(users) - blank_end]
    _check_users(path, users)
    columns = items or largest + 1
    # counts of all items; a single mistyped number can make them huge
    check_memory(rss_bytes() + 16 * columns, f"{path}: items up to number {columns - 1}", "number them from 0 on")
    y = rows.finish(len(users), columns)
    return Dataset(item_features(y, y.column_counts()), y, users=users, source=str(path))


def read_any(
    path: str | Path,
    items: int | None,
    threads: int | None,
    layout: Layout,
    item_names: Sequence[str] | None = None,
) -> Dataset:
    """Interactions as lines of numbers, or as a table of names."""
    if is_table(path, layout):
        return read_table(path, layout, item_names)
    return read_interactions(path, items, threads)


def read_with_history(
    path: str | Path,
    items: int | None,
    threads: int | None,
    history: Dataset | str | Path,
    layout: Layout,
) -> Dataset:
    """The items in a file as labels, those of the same users in `history` as features: none for unknown users. Items
    that the history lacks get labels after all others: they are counted but can't be predicted."""
    if not isinstance(history, Dataset):
        history = read_any(history, items, threads, layout)
    if history.users is None:
        raise DataError(f"{history.source}: expected interactions as history")
    if is_table(path, layout) != (history.user_names is not None):
        raise DataError(
            f"{path}: expected a table of users and items if the history, {history.source}, is one, and only then"
        )
    if is_table(path, layout):
        held_out = read_table(path, layout, history.label_names, history.user_names)
    else:
        held_out = read_interactions(path, None, threads)
    assert held_out.users is not None
    order = np.argsort(history.users)
    at = np.searchsorted(history.users, held_out.users, sorter=order)
    rows = np.append(order, -1)[at]
    known = np.append(history.users, -1)[rows] == held_out.users
    earlier, counts = sparse_part(history.x), np.zeros(len(known), np.int64)
    counts[known] = np.diff(earlier.indptr)[rows[known]]
    x = dataclasses.replace(earlier.take(rows[known]), indptr=indptr_of(counts))
    return _with_labels_of(dataclasses.replace(held_out, x=x, feature_names=history.feature_names), x.columns)


def for_items(data: Dataset, items: int, counts: NDArray[np.integer] | None) -> Dataset:
    """Interactions for a network of `items` items, which occurred `counts` times in its training data. Other items are
    left out of the features; as labels they are counted but can't be predicted.

    Parameters
    ----------
    data : Dataset
        Interactions.
    items : int
        Of the network.
    counts : array (items,)
        In how many rows of its training data each occurred.

    Returns
    -------
    Dataset
    """
    rows = sparse_part(data.x)
    known = dataclasses.replace(rows.where(rows.indices < items), columns=items)
    x = item_features(known, np.zeros(items, np.int64) if counts is None else counts)
    names = None if data.feature_names is None else data.feature_names[:items]
    return _with_labels_of(dataclasses.replace(data, x=x, feature_names=names), items)


def rows_of_items(lists: Sequence[Sequence[str | int]], names: Sequence[str] | None, items: int) -> SparseRows:
    """Rows of items given by name, or by number if they have no names; DataError for one that there is not."""
    number_of = {name: number for number, name in enumerate(names or map(str, range(items)))}
    builder = RowsBuilder()
    for row in lists:
        if isinstance(row, str) or not all(str(item) in number_of for item in row):
            item = row if isinstance(row, str) else next(str(item) for item in row if str(item) not in number_of)
            near = difflib.get_close_matches(item, number_of, n=1)
            raise DataError(f"there is no item {item!r}{f'; did you mean {near[0]!r}?' if near else ''}")
        found = np.unique([number_of[str(item)] for item in row]).astype(np.int32)
        builder.append(np.array([0, len(found)], np.int64), found, np.ones(len(found), np.float32))
    return builder.finish(len(lists), items)


def item_count(features: int | None, labels: int | None) -> int | None:
    """The number of items, given as that of features, of labels, or both."""
    if features is not None and labels is not None and features != labels:
        raise ConfigError(f"labels: interactions have as many labels as features, not {labels} and {features}")
    return labels if features is None else features


def _with_labels_of(data: Dataset, items: int) -> Dataset:
    """The same with at least `items` labels; those beyond are unknown."""
    columns = max(int(data.y.indices.max(initial=-1)) + 1, items)
    y = dataclasses.replace(data.y, columns=columns)
    return dataclasses.replace(data, y=y, unknown_labels=columns - items)


def _refuse_other_words(path: str | Path, first_line: int, block: bytes) -> None:
    found = _NO_NUMBER.search(block)
    if found is None:
        return
    at = found.start()
    line = block[block.rfind(b"\n", 0, at) + 1 : block.index(b"\n", at)]
    word = next(word for word in re.split(rb"[ \t\r]", line) if _NO_NUMBER.search(word))
    raise _not_a_number(path, first_line + block.count(b"\n", 0, at), word, "a user or an item", MAX_COLUMNS)


def _not_a_number(path: str | Path, line: int, word: bytes, what: str, end: int) -> DataError:
    return DataError(f"{path}, line {line}: {quoted(word)} is not {what}, expected a whole number, 0 to {end - 1}")


def _check_users(path: str | Path, users: Ids) -> None:
    """Every line must begin with a user, and each user have one line."""
    if len(users) and users.min() < 0:
        line = int(np.argmax(users < 0)) + 1
        raise DataError(f"{path}, line {line}: expected a user at its beginning, followed by items")
    order = np.argsort(users, kind="stable")
    again = order[1:][users[order[1:]] == users[order[:-1]]]
    if len(again):
        row = int(again.min())
        before = int(np.argmax(users == users[row]))
        twice = f"user {users[row]} has a line already, line {before + 1}; expected one for each"
        twice += ", or a table, which it is if a separator is given"
        raise DataError(f"{path}, line {row + 1}: {twice}")
