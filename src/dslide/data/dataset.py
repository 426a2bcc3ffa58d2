"""Features and labels of the same rows, with the names of their columns."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dslide.data.dense_rows import DenseRows, Features, MixedRows, dense_part, sparse_part
from dslide.data.items import SPLIT, SplitBy, newest, split_items
from dslide.data.layout import Layout
from dslide.data.rows import SparseRows
from dslide.data.text import TextVectorizer
from dslide.errors import ConfigError, DataError
from dslide.util.arrays import Ids

_WEIGHTS = 0x77676874  # random stream
_STATISTICS = 2**32 - 1  # in place of the number of an epoch
MOST_WEIGHT = 1e6  # of a row


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of features `x` and of label weights `y`; labels of weight 0 are dropped."""

    x: Features
    y: SparseRows
    label_names: Sequence[str] | None = None
    feature_names: Sequence[str] | None = None
    vectorizer: TextVectorizer | None = None
    source: str = ""
    base: int = 0  #: the lowest index in the source; here it is 0
    unknown_labels: int = 0  #: label columns at the end that are not among the given label names
    users: Ids | None = None  #: [rows], of interactions
    user_names: Sequence[str] | None = None  #: by number in `users`, if users are known by name
    times: NDArray[np.int64] | None = None  #: [y.nnz] of interactions as they were read: ranks in time, if it is known
    layout: Layout = field(default_factory=Layout)  #: of the file it was read from, as far as it was given
    #: [rows]: how many times each row counts in training, on average over epochs; None: once
    row_weights: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        where = f"{self.source}: " if self.source else ""
        if len(self.x) != len(self.y):
            raise DataError(f"{where}there are {len(self.x)} rows of features but {len(self.y)} rows of labels")
        for what, columns in (("label", self.y.columns), ("feature", self.x.columns)):
            names = getattr(self, f"{what}_names")
            if names is not None and len(names) != columns:
                raise DataError(f"{where}there are {columns} {what}s but {len(names)} {what} names")
        if self.users is not None and len(self.users) != len(self.x):
            raise DataError(f"{where}there are {len(self.x)} rows but {len(self.users)} users")
        if self.row_weights is not None:
            object.__setattr__(self, "row_weights", checked_weights(self.row_weights, len(self.x)))
        if not isinstance(self.y.values, np.memmap):  # a dataset on disk was checked when it was written
            object.__setattr__(self, "y", _labels_only(self.y, where))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def features(self) -> int:
        """The number of feature columns."""
        return self.x.columns

    @property
    def labels(self) -> int:
        """The number of label columns."""
        return self.y.columns

    @property
    def seen(self) -> SparseRows | None:
        """Labels to exclude from predictions: of interactions, the items in a user's history."""
        return None if self.users is None else sparse_part(self.x)

    @property
    def dense_features(self) -> int:
        """The number of feature columns, at the end, of which every row has a value."""
        dense = dense_part(self.x)
        return 0 if dense is None else dense.columns

    @cached_property
    def checksum(self) -> str:
        """A digest of all features and labels; that of a dataset folder is stored in its manifest."""
        sparse = {"y": self.y} if isinstance(self.x, DenseRows) else {"x": sparse_part(self.x), "y": self.y}
        sums = {
            f"{name}_{part}": crc32(getattr(rows, part))
            for name, rows in sparse.items()
            for part in ("indptr", "indices", "values")
        }
        if (dense := dense_part(self.x)) is not None:
            sums["x_dense"] = reduce(lambda before, piece: crc32(piece.view(np.uint8), before), dense.pieces(), 0)
        if self.row_weights is not None:
            sums["row_weights"] = crc32(self.row_weights)
        return combined_checksum(self.x.columns, self.y.columns, sums)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """The number of rows with each label: [labels]."""
        return self.y.column_counts()

    def label_frequencies(self) -> NDArray[np.float64]:
        """The share of rows with each label, smoothed so that none is 0 or 1.

        Returns
        -------
        array (labels,) of float64
        """
        return smoothed_frequencies(self.label_counts, len(self))

    @property
    def rows_per_epoch(self) -> int:
        """The number of rows in an epoch."""
        return len(self)

    @property
    def values_per_row(self) -> tuple[float, float]:
        """The mean number of sparse features and of labels of a row."""
        rows = max(len(self), 1)
        return sparse_part(self.x).nnz / rows, self.y.nnz / rows

    @property
    def data_bytes(self) -> int:
        """The size of the rows in memory, if they have weights with the copy that `weighted` makes; that of a mapped
        file of dense rows is not counted."""
        copied = 0 if self.row_weights is None else self.copied_bytes
        return self.x.memory_bytes + self.y.memory_bytes + copied

    @property
    def copied_bytes(self) -> int:
        """The size of a copy of the rows, as `take` makes one: dense features stay where they are."""
        return sparse_part(self.x).memory_bytes + self.y.memory_bytes

    def epoch(self, number: int, seed: int) -> Dataset:
        """The rows of an epoch: always all of them.

        Parameters
        ----------
        number, seed : int
            Of no effect here; those of `Tokens` differ from epoch to epoch.

        Returns
        -------
        Dataset
        """
        return self

    def times_in_epoch(self, seed: int, number: int) -> NDArray[np.int64] | None:
        """How often each row is trained on in an epoch: its weight, rounded up or down at random, so that the gradient
        is that of the weighted loss on average.

        Parameters
        ----------
        seed : int
            Of the random choice.
        number : int
            Of the epoch, or of another purpose.

        Returns
        -------
        numpy.ndarray of int64 (rows,) or None
            None: every row once.
        """
        if self.row_weights is None:
            return None
        random = np.random.default_rng([seed, number, _WEIGHTS])
        return np.floor(self.row_weights + random.random(len(self))).astype(np.int64)

    def weighted(self, seed: int) -> Dataset:
        """Rows as often as their weights say.

        Parameters
        ----------
        seed : int
            Of the random choice: weights are rounded up or down.

        Returns
        -------
        Dataset
            A copy without weights; the same dataset if it has none.
        """
        times = self.times_in_epoch(seed, _STATISTICS)
        if times is None:
            return self
        return dataclasses.replace(self.take(np.repeat(np.arange(len(self)), times)), row_weights=None)

    def with_labels(self) -> NDArray[np.int64]:
        """The indices of rows with labels."""
        return np.flatnonzero(np.diff(self.y.indptr) > 0)

    def batch(self, rows: ArrayLike) -> tuple[Features, SparseRows]:
        """Features and labels of the chosen rows, in the order given; copied, but for dense features.

        Parameters
        ----------
        rows : array of int
            Numbers of rows.

        Returns
        -------
        x : rows of features
        y : SparseRows
            Weights of labels.
        """
        return self.x.take(rows), self.y.take(rows)

    def rows(self, begin: int, end: int) -> tuple[Features, SparseRows]:
        """Features and labels of rows begin to end.

        Parameters
        ----------
        begin, end : int

        Returns
        -------
        x : rows of features
        y : SparseRows
            Weights of labels.
        """
        return self.x.part(begin, end), self.y.part(begin, end)

    def split(self, share: float, seed: int, by: SplitBy = "random") -> tuple[Dataset, Dataset]:
        """A random partition of the rows, in order and copied; `share` of them are in the second part. Both parts have
        all columns: a label may have no row in a part. Interactions are split within users: each item is held out, as a
        label of the second part, with probability `share`. Users without such items are in the first part only.

        Interactions with times may be split `by` "time", the newest `share` of all of them being held out, or "last",
        the newest one of each user with several, whatever `share` is.

        Parameters
        ----------
        share : float
            Of the rows, or of the items of each user, in the second part; above 0 and below 1.
        seed : int
            The same seed gives the same partition.
        by : {"random", "time", "last"}
            How interactions are held out.

        Returns
        -------
        first, second : Dataset

        Raises
        ------
        DataError
            A part would have no rows.
        """
        if by != "random":
            return split_items(self, newest(self, share, by))
        if not 0 < share < 1:
            raise ConfigError(f"share: expected a number above 0 and below 1, not {share}")
        random, where = np.random.default_rng([seed, SPLIT]), self.source or "the data"
        if self.users is not None:
            held_out = random.random(self.y.nnz) < share
            if not 0 < held_out.sum() < self.y.nnz:
                raise DataError(f"{where}: a share of {share} leaves one part of {self.y.nnz} items without any")
            return split_items(self, held_out)
        count = round(share * len(self))
        if not 0 < count < len(self):
            raise DataError(f"{where}: a share of {share} leaves one part of {len(self)} rows without any")
        chosen = np.zeros(len(self), np.bool_)
        chosen[random.permutation(len(self))[:count]] = True
        return self.take(np.flatnonzero(~chosen)), self.take(np.flatnonzero(chosen))

    def take(self, row_ids: NDArray[np.integer]) -> Dataset:
        """The chosen rows, in the order given; copied, but for dense features.

        Parameters
        ----------
        row_ids : array of int
            Numbers of rows.

        Returns
        -------
        Dataset
        """
        users = None if self.users is None else self.users[row_ids]
        weights = None if self.row_weights is None else self.row_weights[row_ids]
        x, y = self.x.take(row_ids), self.y.take(row_ids)
        return dataclasses.replace(self, x=x, y=y, users=users, times=None, row_weights=weights)

    def and_rows(self, others: Dataset) -> Dataset:
        """These rows and then others with the same columns, copied; not for interactions.

        Parameters
        ----------
        others : Dataset

        Returns
        -------
        Dataset
        """
        x, y = _concatenated(self.x, others.x), SparseRows.concatenate([self.y, others.y])
        weights = None
        if self.row_weights is not None or others.row_weights is not None:
            both = [np.ones(len(part)) if part.row_weights is None else part.row_weights for part in (self, others)]
            weights = np.concatenate(both)
        return dataclasses.replace(self, x=x, y=y, row_weights=weights)

    def with_checksum(self, checksum: str) -> Dataset:
        """This dataset itself, with a known checksum set."""
        self.__dict__["checksum"] = checksum
        return self

    def with_label_names(self, names: Sequence[str]) -> Dataset:
        """A copy with other label names and the same checksum, if that is known.

        Parameters
        ----------
        names : list of str
            A name for each label.

        Returns
        -------
        Dataset
        """
        copy = dataclasses.replace(self, label_names=names)
        return copy.with_checksum(self.checksum) if "checksum" in self.__dict__ else copy


def _concatenated(x: Features, others: Features) -> Features:
    """Rows and then others of the same kind."""
    if isinstance(x, SparseRows) and isinstance(others, SparseRows):
        return SparseRows.concatenate([x, others])
    if isinstance(x, DenseRows) and isinstance(others, DenseRows):
        return DenseRows.concatenate([x, others])
    if isinstance(x, MixedRows) and isinstance(others, MixedRows):
        return MixedRows.concatenate([x, others])
    raise DataError("rows of different kinds, sparse and dense ones, can't be joined")


def checked_weights(weights: ArrayLike, rows: int) -> NDArray[np.float64]:
    """Weights of rows; DataError if they are none."""
    try:
        found = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise DataError("weights of rows: expected numbers") from None
    if found.shape != (rows,):
        raise DataError(f"weights of rows: expected {rows}, one for each row, not an array of shape {found.shape}")
    if len(wrong := np.flatnonzero(~((found >= 0) & (found <= MOST_WEIGHT)))):
        raise DataError(f"weights of rows: expected 0 to {MOST_WEIGHT:g}, but row {wrong[0]} has {found[wrong[0]]:g}")
    return found


def smoothed_frequencies(counts: NDArray[Any], rows: float) -> NDArray[np.float64]:
    """Counts as shares of the rows, smoothed so that none is 0 or 1."""
    return (counts + 0.5) / (rows + 1)


def rows_bytes(rows: int, nonzeros: int) -> int:
    """The size of a dataset's rows in memory; `nonzeros` counts all features and labels."""
    return 16 * (rows + 1) + 8 * nonzeros


def combined_checksum(features: int, labels: int, sums: Mapping[str, int]) -> str:
    """A hex digest of the CRC32 of each array and the numbers of columns."""
    text = json.dumps([features, labels, sorted(sums.items())])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def crc32(array: np.ndarray, before: int = 0) -> int:
    """CRC32 of an array's bytes, continued from that of the bytes before."""
    return zlib.crc32(np.ascontiguousarray(array).data.cast("B") if array.size else b"", before)


def _labels_only(y: SparseRows, where: str) -> SparseRows:
    """`y` without weights of 0; negative ones are refused."""
    if y.nnz == 0 or (lowest := float(y.values.min())) > 0:
        return y
    if lowest < 0:
        at = int(np.argmax(y.values < 0))
        place = f"{where}row {y.row_of(at)}, label {y.indices[at]}"
        raise DataError(f"{place}: a label's weight can't be negative, found {y.values[at]:g}")
    return y.where(y.values != 0)
