"""Features and labels of the same rows, with what their columns mean."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dslide.data.rows import SparseRows
from dslide.data.text import TextVectorizer
from dslide.errors import ConfigError, DataError

_SPLIT = 0x73706C69  # tells the random numbers of splits from others of the same seed


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of features `x` and of label weights `y`; a weight of 0 is no label and is dropped."""

    x: SparseRows
    y: SparseRows
    label_names: Sequence[str] | None = None
    feature_names: Sequence[str] | None = None
    vectorizer: TextVectorizer | None = None
    source: str = ""
    base: int = 0  # what indices counted from in the source; here they count from 0
    unknown_labels: int = 0  # how many of the last label columns the given label names lacked
    users: NDArray[np.int32] | None = None  # [rows]: of interactions, whose they are
    _checksum: str | None = field(default=None, init=False, repr=False)  # so that replace() does not carry it on

    def __post_init__(self) -> None:
        where = f"{self.source}: " if self.source else ""
        if len(self.x) != len(self.y):
            raise DataError(f"{where}there are {len(self.x)} rows of features but {len(self.y)} rows of labels")
        for what, names, columns in (
            ("label", self.label_names, self.y.columns),
            ("feature", self.feature_names, self.x.columns),
        ):
            if names is not None and len(names) != columns:
                raise DataError(f"{where}there are {columns} {what}s but {len(names)} {what} names")
        if self.users is not None and len(self.users) != len(self.x):
            raise DataError(f"{where}there are {len(self.x)} rows but {len(self.users)} users")
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
        """Labels that are not to be predicted: of interactions, the items that users come with."""
        return None if self.users is None else self.x

    @property
    def checksum(self) -> str:
        """A digest of all features and labels; of a dataset on disk it is known without reading the data."""
        if self._checksum is None:
            sums = {
                f"{name}_{part}": crc32(getattr(rows, part))
                for name, rows in (("x", self.x), ("y", self.y))
                for part in ("indptr", "indices", "values")
            }
            return self.with_checksum(combined_checksum(self.x.columns, self.y.columns, sums)).checksum
        return self._checksum

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """The rows that have each label."""
        return np.bincount(self.y.indices, minlength=self.y.columns)

    def label_frequencies(self) -> NDArray[np.float64]:
        """The share of rows that have each label, moved a little towards the middle so that none is 0 or 1."""
        return smoothed_frequencies(self.label_counts, len(self))

    @property
    def rows_per_epoch(self) -> int:
        """The rows of an epoch."""
        return len(self)

    @property
    def values_per_row(self) -> tuple[float, float]:
        """Features and labels of a row, on average."""
        rows = max(len(self), 1)
        return self.x.nnz / rows, self.y.nnz / rows

    @property
    def data_bytes(self) -> int:
        """The memory that the rows take."""
        return rows_bytes(len(self), self.x.nnz + self.y.nnz)

    def epoch(self, number: int, seed: int) -> Dataset:
        """The rows to train on in an epoch: always all of them."""
        return self

    def with_labels(self) -> NDArray[np.int64]:
        """The numbers of the rows that have labels."""
        return np.flatnonzero(np.diff(self.y.indptr) > 0)

    def batch(self, rows: ArrayLike) -> tuple[SparseRows, SparseRows]:
        """Features and labels of the chosen rows, copied, in the order given."""
        return self.x.take(rows), self.y.take(rows)

    def rows(self, begin: int, end: int) -> tuple[SparseRows, SparseRows]:
        """Features and labels of rows begin to end."""
        return self.x.part(begin, end), self.y.part(begin, end)

    def split(self, share: float, seed: int) -> tuple[Dataset, Dataset]:
        """The rows without, and with only, a random choice of them; `share` of all are in the second part.

        Rows stay in order, and columns and their names are those of the whole: a label may have no row in a part. The
        rows are copied to memory. Interactions are split within users: each keeps some of the items, and is to be
        recommended the others.
        """
        if not 0 < share < 1:
            raise ConfigError(f"share: expected a number above 0 and below 1, not {share}")
        if self.users is not None:
            from dslide.data.formats.interactions import split_items

            return split_items(self, share, np.random.default_rng([seed, _SPLIT]))
        count = round(share * len(self))
        if not 0 < count < len(self):
            where = self.source or "the data"
            raise DataError(f"{where}: a share of {share} leaves one part of {len(self)} rows without any")
        chosen = np.zeros(len(self), np.bool_)
        chosen[np.random.default_rng([seed, _SPLIT]).permutation(len(self))[:count]] = True
        return self.take(np.flatnonzero(~chosen)), self.take(np.flatnonzero(chosen))

    def take(self, row_ids: NDArray[np.integer]) -> Dataset:
        """The chosen rows, copied, in the order given."""
        users = None if self.users is None else self.users[row_ids]
        return dataclasses.replace(self, x=self.x.take(row_ids), y=self.y.take(row_ids), users=users)

    def with_checksum(self, checksum: str) -> Dataset:
        """This dataset, from now on with a checksum that is known already."""
        object.__setattr__(self, "_checksum", checksum)
        return self

    def with_label_names(self, names: Sequence[str]) -> Dataset:
        """A copy with other label names; a checksum that is known stays so."""
        copy = dataclasses.replace(self, label_names=names)
        return copy if self._checksum is None else copy.with_checksum(self._checksum)


def smoothed_frequencies(counts: NDArray[Any], rows: float) -> NDArray[np.float64]:
    """Counts out of so many rows as shares, moved a little towards the middle so that none is 0 or 1."""
    return (counts + 0.5) / (rows + 1)


def rows_bytes(rows: int, nonzeros: int) -> int:
    """The memory of a dataset's rows; `nonzeros` counts features and labels of all of them together."""
    return 16 * (rows + 1) + 8 * nonzeros


def combined_checksum(features: int, labels: int, sums: Mapping[str, int]) -> str:
    """One hex digest of the CRC32 of each array and the numbers of columns."""
    text = json.dumps([features, labels, sorted(sums.items())])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def crc32(array: np.ndarray, before: int = 0) -> int:
    """CRC32 of an array's bytes, continuing from what went before."""
    return zlib.crc32(np.ascontiguousarray(array).data.cast("B") if array.size else b"", before)


def _labels_only(y: SparseRows, where: str) -> SparseRows:
    """Without the weights of 0; negative ones are refused."""
    if y.nnz == 0 or (lowest := float(y.values.min())) > 0:
        return y
    if lowest < 0:
        at = int(np.argmax(y.values < 0))
        raise DataError(
            f"{where}row {y.row_of(at)}, label {y.indices[at]}: a label's weight can't be negative, "
            f"found {y.values[at]:g}"
        )
    return y.where(y.values != 0)
