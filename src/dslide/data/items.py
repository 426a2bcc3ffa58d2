"""What is particular to interactions of users with items: the values of features, and the items that are held out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from dslide.data.rows import SparseRows
from dslide.errors import DataError
from dslide.util.csr import scale_rows

if TYPE_CHECKING:
    from dslide.data.dataset import Dataset

SPLIT = 0x73706C69  # random stream
SplitBy = Literal["random", "time", "last"]
_HELD_OUT_OF = 5  # items of a user: one of so many is held out


def item_features(items: SparseRows, counts: NDArray[np.integer]) -> SparseRows:
    """Rows of length 1 in which an item that occurs n times in the training data has weight 1 / sqrt(1 + n): popular
    items say little about a user. `counts` has n for each column."""
    values = item_values(counts)[items.indices]
    scale_rows(items.indptr, values)
    return dataclasses.replace(items, values=values.astype(np.float32))


def item_values(counts: NDArray[np.integer]) -> NDArray[np.float64]:
    """The weights of items in rows, before those are scaled."""
    return np.asarray(1 / np.sqrt(1.0 + counts))


def newest(data: Dataset, share: float, by: SplitBy) -> NDArray[np.bool_]:
    """Which interactions are held out, by position in `y`."""
    where = data.source or "the data"
    if data.times is None:
        raise DataError(f"{where}: split = {by} needs interactions with times, in the column that time_column names")
    if by == "time":
        held_out = data.times >= len(data.times) - round(share * len(data.times))
    else:
        last = np.full(len(data), -1, np.int64)
        rows = data.y.row_numbers()
        np.maximum.at(last, rows, data.times)
        held_out = (data.times == last[rows]) & (np.diff(data.y.indptr)[rows] > 1)
    if not 0 < held_out.sum() < data.y.nnz:
        raise DataError(f"{where}: split = {by} leaves one part of {data.y.nnz} interactions without any")
    return np.asarray(held_out)


def hold_out_items(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Interactions without a fifth of the items, at least one, of a random `share` of the users, and these users
    with those items as labels. Users with a single item keep it."""
    random, where = np.random.default_rng([seed, SPLIT]), data.source or "the data"
    counts = np.diff(data.y.indptr)
    several = np.flatnonzero(counts > 1)
    chosen = random.permutation(several)[: round(share * len(data))]
    if len(chosen) == 0:
        raise DataError(f"{where}: a share of {share} of {len(data)} users is none with two items")
    wanted = np.zeros(len(data), np.int64)
    wanted[chosen] = np.maximum(1, counts[chosen] // _HELD_OUT_OF)
    rows = data.y.row_numbers()
    by_chance = np.lexsort((random.random(data.y.nnz), rows))  # each user's items in random order
    held_out = np.zeros(data.y.nnz, np.bool_)
    held_out[by_chance] = np.arange(data.y.nnz) - data.y.indptr[rows] < wanted[rows]
    return split_items(data, held_out)


def split_items(data: Dataset, held_out: NDArray[np.bool_]) -> tuple[Dataset, Dataset]:
    """Interactions without the items held out (by position in `y`), and the users that lose some, with those as
    labels."""
    kept, others = data.y.where(~held_out), data.y.where(held_out)
    train = dataclasses.replace(data, x=item_features(kept, kept.column_counts()), y=kept, times=None)
    return train, dataclasses.replace(train, y=others).take(np.flatnonzero(np.diff(others.indptr)))
