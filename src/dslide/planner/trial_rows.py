"""Rows to time training steps with: a sample of the data or random ones, with fewer features and labels if needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dslide.data import Data, DenseRows, Features, MixedRows, SparseRows, dense_part, sparse_part
from dslide.errors import DataError
from dslide.util.csr import indptr_of

BATCHES = 8  # of distinct rows, which are then used again
MOST_VALUES = 1 << 23  # features and labels of all rows
FEATURE_LAW, LABEL_LAW = 3.0, 20.0  # of random rows: the n-th most frequent one has probability ~ 1 / (n + this)


@dataclass(frozen=True)
class TrialRows:
    """Rows of features and labels, and the size of the data that they represent."""

    x: Features
    y: SparseRows
    rows: int = 0  # of the data; 0: unknown

    @property
    def features(self) -> int:
        return self.x.columns

    @property
    def labels(self) -> int:
        return self.y.columns

    @property
    def values_per_row(self) -> tuple[float, float]:
        """The mean number of sparse features and of labels of a row."""
        return sparse_part(self.x).nnz / len(self.x), self.y.nnz / len(self.x)

    @property
    def dense_features(self) -> int:
        """Features that every row has."""
        dense = dense_part(self.x)
        return 0 if dense is None else dense.columns

    def prior_labels(self, most: int) -> int:
        """Labels of a feature in the label prior of the data: no more than co-occur with it in rows, at most `most`."""
        if not self.rows:
            return most
        pairs = float(np.diff(sparse_part(self.x).indptr) @ np.diff(self.y.indptr)) / len(self.x) * self.rows
        return min(most, round(pairs / self.features))

    def fewer(self, features: int, labels: int) -> TrialRows:
        """The same rows with at most about `features` and `labels`; columns that don't occur are dropped first."""
        x, dense = sparse_part(self.x), dense_part(self.x)
        if x.columns > features:
            found, numbers = np.unique(x.indices, return_inverse=True)
            columns = max(features, len(found))
            indices = numbers.astype(np.int64) * columns // max(len(found), 1)  # over the whole layer, as they were
            x = SparseRows(x.indptr, indices.astype(np.int32), x.values, columns)
        y = self.y
        if y.columns > labels:
            found, numbers = np.unique(y.indices, return_inverse=True)
            # consecutive, so that all of R ranks, which own every R-th label, have equally many
            y = SparseRows(y.indptr, numbers.astype(np.int32), y.values, max(labels, len(found)))
        if dense is not None:
            return TrialRows(dense if dense is self.x else MixedRows(x, dense), y, self.rows)
        return TrialRows(x, y, self.rows)


def rows_of(data: Data, batch_size: int, seed: int) -> TrialRows:
    """A random sample of the data's rows with labels."""
    epoch = data.epoch(0, seed)
    labelled = epoch.with_labels()
    if len(labelled) == 0:
        raise DataError(f"{data.source}: there is no row with a label to learn from")
    chosen = np.random.default_rng([seed, 0]).permutation(labelled)[
        : _count(batch_size, sum(data.values_per_row) + data.dense_features)
    ]
    return TrialRows(*epoch.batch(chosen), data.rows_per_epoch)


def made_up(
    batch_size: int, features: int, labels: int, features_per_row: float, labels_per_row: float, rows: int = 0,
    dense_features: int = 0,
) -> TrialRows:  # fmt: skip
    """Random rows with a long-tailed distribution of features and labels, like words and topics; of the features the
    last `dense_features` are dense."""
    per_row = features_per_row + labels_per_row + dense_features
    random, count = np.random.default_rng(0), _count(batch_size, per_row)
    x: Features = _lists(random, count, max(1, features - dense_features), features_per_row, FEATURE_LAW)
    if dense_features:
        dense = DenseRows(random.standard_normal((count, dense_features), np.float32))
        x = dense if dense_features == features else MixedRows(sparse_part(x), dense)
    return TrialRows(x, _lists(random, count, labels, labels_per_row, LABEL_LAW), rows)


def _count(batch_size: int, per_row: float) -> int:
    return max(1, min(BATCHES * batch_size, int(MOST_VALUES / max(per_row, 1))))


def _lists(random: np.random.Generator, rows: int, columns: int, mean: float, law: float) -> SparseRows:
    each = max(1, min(columns, round(mean)))
    drawn = law * ((1 + columns / law) ** random.random((rows, each)) - 1)  # inverse of the law's integral
    ids = np.sort(np.minimum(drawn, columns - 1).astype(np.int32), axis=1)
    keep: npt.NDArray[np.bool_] = np.diff(ids, axis=1, prepend=-1) > 0  # each at most once in a row
    indptr = indptr_of(keep.sum(axis=1))
    return SparseRows(indptr, ids[keep], np.full(indptr[-1], each**-0.5, np.float32), columns)
