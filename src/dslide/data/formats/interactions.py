"""What users did with items: a line `user item item ...` per user, all whole numbers.

A row's features are the items of its user and its labels the same items: a network learns which items go together. Of
items that are held out, the labels are these and the features the user's earlier ones, their history. What a user has
had already is not to be recommended again (`Dataset.seen`)."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dslide import _core
from dslide.data.dataset import Dataset
from dslide.data.files import BLOCK_BYTES, line_blocks, quoted
from dslide.data.rows import MAX_COLUMNS, RowsBuilder, SparseRows
from dslide.errors import DataError
from dslide.util.memory import check_memory, rss_bytes

_NO_NUMBER = re.compile(rb"[^0-9 \t\r\n]")


def read_interactions(
    path: str | Path, items: int | None = None, threads: int | None = None, block_bytes: int = BLOCK_BYTES
) -> Dataset:
    """A row for each line, with the same items as features and as labels. There are `items` items, or as many as the
    largest number says; one that is there twice in a line counts once."""
    lists, owners = RowsBuilder(), []
    largest, blank_end = -1, 0
    for line, block in line_blocks(path, block_bytes):
        _refuse_other_words(path, line, block)
        parsed = _core.parse_rows(  # a user is read as the label of a libsvm row, the items as its features
            block, (0, items or MAX_COLUMNS), (0, MAX_COLUMNS), False, threads=threads or 0
        )
        if parsed["fault"] is not None:
            fault, fault_line, text = parsed["fault"]
            what, end = ("a user", MAX_COLUMNS) if fault.startswith("label") else ("an item", items or MAX_COLUMNS)
            raise _not_a_number(path, line + fault_line, text, what, end)
        indptr, indices, values = parsed["x"]
        lists.append(indptr, indices, np.ones_like(values))
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
    # counts of all items; and a number may be a slip of the pen
    check_memory(rss_bytes() + 16 * columns, f"{path}: items up to number {columns - 1}", "number them from 0 on")
    y = lists.finish(len(users), columns)
    return Dataset(_as_input(y, _counts(y)), y, users=users, source=str(path))


def with_history(held_out: Dataset, history: Dataset) -> Dataset:
    """The held-out items of users as labels, and what `history` has of the same users as features: nothing, if it
    doesn't know them. Items that it lacks are labels behind all others, which can only be missed."""
    if history.users is None:
        raise DataError(f"{history.source}: expected interactions as history")
    assert held_out.users is not None
    order = np.argsort(history.users)
    at = np.searchsorted(history.users, held_out.users, sorter=order)
    rows = np.append(order, -1)[at]
    known = np.append(history.users, -1)[rows] == held_out.users
    counts = np.zeros(len(known), np.int64)
    counts[known] = np.diff(history.x.indptr)[rows[known]]
    inputs = history.x.take(rows[known])
    x = SparseRows(_ends(counts), inputs.indices, inputs.values, inputs.columns)
    return _with_labels_of(dataclasses.replace(held_out, x=x), x.columns)


def for_items(data: Dataset, items: int, counts: NDArray[np.integer] | None) -> Dataset:
    """Interactions as a network of so many items takes them, which occurred `counts` times in its training data. Others
    are left out of the features, and as labels they can only be missed."""
    known = data.x.where(data.x.indices < items)
    lists = SparseRows(known.indptr, known.indices, known.values, items)
    x = _as_input(lists, np.zeros(items, np.int64) if counts is None else counts)
    return _with_labels_of(dataclasses.replace(data, x=x), items)


def _with_labels_of(data: Dataset, items: int) -> Dataset:
    """The same with at least so many labels; those beyond are unknown."""
    y = data.y
    y = SparseRows(y.indptr, y.indices, y.values, max(int(y.indices.max(initial=-1)) + 1, items))
    return dataclasses.replace(data, y=y, unknown_labels=y.columns - items)


def split_items(data: Dataset, share: float, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
    """Users with some of their items, and the same users with the others as labels; each item is among the others with
    the chance `share`. Users whom that leaves nothing to be recommended are in the first part only."""
    y = data.y
    out = rng.random(y.nnz) < share
    if not 0 < out.sum() < y.nnz:
        raise DataError(f"{data.source}: a share of {share} leaves one part of {y.nnz} items without any")
    kept, others = y.where(~out), y.where(out)
    train = dataclasses.replace(data, x=_as_input(kept, _counts(kept)), y=kept)
    held_out = dataclasses.replace(data, x=train.x, y=others)
    return train, held_out.take(np.flatnonzero(np.diff(others.indptr)))


def _as_input(lists: SparseRows, counts: NDArray[np.integer]) -> SparseRows:
    """Rows of length 1 in which an item that occurs n times in the training data counts 1 / sqrt(1 + n): that two users
    share a place where everybody goes says little."""
    values = 1 / np.sqrt(1.0 + counts[lists.indices])
    per_row = np.diff(lists.indptr)
    squares = np.bincount(np.repeat(np.arange(len(lists)), per_row), values**2, len(lists))
    values /= np.repeat(np.sqrt(squares), per_row)
    return SparseRows(lists.indptr, lists.indices, values.astype(np.float32), lists.columns)


def _counts(lists: SparseRows) -> NDArray[np.int64]:
    """How often each column occurs."""
    return np.bincount(lists.indices, minlength=lists.columns)


def _ends(counts: NDArray[np.generic]) -> NDArray[np.int64]:
    """Row bounds, from 0 on."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


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


def _check_users(path: str | Path, users: NDArray[np.int32]) -> None:
    """Every line must begin with a user, each with another."""
    if len(users) and users.min() < 0:
        line = int(np.argmax(users < 0)) + 1
        raise DataError(f"{path}, line {line}: expected a user at its beginning, followed by items")
    order = np.argsort(users, kind="stable")
    again = order[1:][users[order[1:]] == users[order[:-1]]]
    if len(again):
        row = int(again.min())
        before = int(np.argmax(users == users[row]))
        raise DataError(
            f"{path}, line {row + 1}: user {users[row]} has a line already, line {before + 1}; expected one for each"
        )
