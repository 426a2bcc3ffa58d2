"""Rows to time training steps with: some of the data, or made-up ones, for a network with fewer features and labels
than the data has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dslide.data import Data, SparseRows
from dslide.errors import DataError

BATCHES = 8  # of different rows, or as many as have so many features and labels; then the first come again
MOST_VALUES = 1 << 23
FEATURE_LAW, LABEL_LAW = 3.0, 20.0  # made-up ones: the n-th most frequent is so with a chance of about 1 / (n + this)


@dataclass(frozen=True)
class TrialRows:
    """Rows of features and labels, and what is known of the data they stand for."""

    x: SparseRows
    y: SparseRows
    rows: int = 0  # of the data; 0: not known

    @property
    def features(self) -> int:
        return self.x.columns

    @property
    def labels(self) -> int:
        return self.y.columns

    @property
    def values_per_row(self) -> tuple[float, float]:
        """Features and labels of a row, on average."""
        return self.x.nnz / len(self.x), self.y.nnz / len(self.x)

    def links(self, most: int) -> int:
        """How many labels a feature of the data is linked to, at most so many: as many as rows bring together."""
        if not self.rows:
            return most
        pairs = float(np.diff(self.x.indptr) @ np.diff(self.y.indptr)) / len(self.x) * self.rows
        return min(most, round(pairs / self.features))

    def fewer(self, features: int, labels: int) -> TrialRows:
        """The same rows with about so many features and labels at most, those that don't occur left out first."""
        x = self.x
        if x.columns > features:
            found, numbers = np.unique(x.indices, return_inverse=True)
            columns = max(features, len(found))
            spread = numbers.astype(np.int64) * columns // max(len(found), 1)  # over all of the layer, as they were
            x = SparseRows(x.indptr, spread.astype(np.int32), x.values, columns)
        y = self.y
        if y.columns > labels:
            found, numbers = np.unique(y.indices, return_inverse=True)
            # in sequence, so that ranks, which own every so manieth, have as many of them
            y = SparseRows(y.indptr, numbers.astype(np.int32), y.values, max(labels, len(found)))
        return TrialRows(x, y, self.rows)


def rows_of(data: Data, batch_size: int, seed: int) -> TrialRows:
    """Rows of the data, chosen at random among those that have labels."""
    epoch = data.epoch(0, seed)
    labelled = epoch.with_labels()
    if len(labelled) == 0:
        raise DataError(f"{data.source}: there is no row with a label to learn from")
    chosen = np.random.default_rng([seed, 0]).permutation(labelled)[: _count(batch_size, sum(data.values_per_row))]
    return TrialRows(*epoch.batch(chosen), data.rows_per_epoch)


def made_up(
    batch_size: int, features: int, labels: int, features_per_row: float, labels_per_row: float, rows: int = 0
) -> TrialRows:
    """Rows in which some features and labels are much more frequent than others, as words and topics are."""
    random, count = np.random.default_rng(0), _count(batch_size, features_per_row + labels_per_row)
    return TrialRows(
        _lists(random, count, features, features_per_row, FEATURE_LAW),
        _lists(random, count, labels, labels_per_row, LABEL_LAW),
        rows,
    )


def _count(batch_size: int, per_row: float) -> int:
    return max(1, min(BATCHES * batch_size, int(MOST_VALUES / max(per_row, 1))))


def _lists(random: np.random.Generator, rows: int, columns: int, mean: float, law: float) -> SparseRows:
    each = max(1, min(columns, round(mean)))
    drawn = law * ((1 + columns / law) ** random.random((rows, each)) - 1)  # the law's integral, inverted
    ids = np.sort(np.minimum(drawn, columns - 1).astype(np.int32), axis=1)
    keep: npt.NDArray[np.bool_] = np.diff(ids, axis=1, prepend=-1) > 0  # each at most once in a row
    indptr = np.concatenate([[0], np.cumsum(keep.sum(axis=1))]).astype(np.int64)
    return SparseRows(indptr, ids[keep], np.full(indptr[-1], each**-0.5, np.float32), columns)
