"""The linear discriminant of dense rows: what a network for them starts from.

Rows with a label are taken to be spread around the label's mean alike for all labels (covariance W), and means around
the mean of all rows (covariance B). Both covariances are estimated from the training data and shrunk. In the directions
found here W is the identity and B is diagonal. docs/internals/dense-rows.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dslide.comm import Communicator
from dslide.data import DenseRows, Features, MixedRows, SparseRows
from dslide.model.sharding import WHOLE, Shard

Doubles = npt.NDArray[np.float64]
LabelIds = npt.NDArray[np.int64]

PIECE_BYTES = 32 << 20  # rows that are converted at a time
# A column with less variance than this is constant: relative to its mean, less is rounding of 32-bit numbers; and its
# inverse must be such a number.
LEAST_DEVIATION, LEAST_VARIANCE = 1e-6, 1e-60
LEAST_WITHIN = 1e-9  # variance of a label's rows in a direction, as a share of that of all rows


@dataclass(frozen=True)
class Discriminant:
    """A row x of `features` values is projected to x @ directions - offset."""

    directions: Doubles  # (features, kept): those that tell labels apart best, best first
    offset: Doubles  # (kept): the mean of all rows, projected
    spread: Doubles  # (kept): the variance of labels' means along each, if that of a label's rows is 1

    @classmethod
    def of_all_ranks(cls, comm: Communicator, x: Features, y: SparseRows, most: int) -> Discriminant:
        """That of the data, which rank 0 finds for all: directions are not unique, and rounding differs between
        machines."""
        if comm.size == 1:
            return find_discriminant(x, y, most)
        message = find_discriminant(x, y, most).packed() if comm.rank == 0 else b""
        numbers = np.frombuffer(comm.all_gather("discriminant", message)[0], np.float64).reshape(x.columns + 2, -1)
        return cls(numbers[:-2], numbers[-2], numbers[-1])

    @property
    def length(self) -> float:
        """The root mean square length of a projected row."""
        return float(np.sqrt((1 + self.spread).sum()))

    def scores(self, sums: Doubles, counts: npt.NDArray[np.integer]) -> tuple[Doubles, Doubles]:
        """Weights (labels, kept) on projected rows and biases (labels) of labels with `counts` rows, at least one, that
        have these `sums`. A label's mean is estimated from few rows: the estimate is shrunk to the mean of all rows,
        and its uncertainty adds to the spread of the label's rows."""
        n = counts[:, None]
        means = (sums / n) @ self.directions - self.offset
        means *= n * self.spread / (1 + n * self.spread)
        weights = means * ((1 + n * self.spread) / (1 + (n + 1) * self.spread))
        return weights, -0.5 * (means * weights).sum(axis=1)

    def packed(self) -> bytes:
        """For other ranks."""
        return np.vstack([self.directions, self.offset, self.spread]).tobytes()


def find_discriminant(x: Features, y: SparseRows, most: int) -> Discriminant:
    """The discriminant of training data, with at most so many directions. Every label of a row counts as a row."""
    counts = y.column_counts().astype(np.float64)
    weights = np.diff(y.indptr).astype(np.float64) if y.nnz else np.ones(len(x))
    pairs, labels = weights.sum(), np.count_nonzero(counts)
    mean, total = _moments(x, weights)
    between = np.zeros_like(total)
    for ids, sums in label_sums(x, y):
        scaled = (sums - counts[ids, None] * mean) / np.sqrt(counts[ids, None])
        between += scaled.T @ scaled
    # Columns are scaled to variance 1, so that shrinking treats them alike; constant ones are left out.
    variance = np.diag(total) / pairs
    varies = variance > LEAST_DEVIATION**2 * mean**2 + LEAST_VARIANCE
    scale = np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1)), 0)
    total, between = (matrix * scale * scale[:, None] for matrix in (total, between))
    within = np.eye(len(total)) / 2  # half of the variance, if no label has two rows to tell
    if pairs > labels:
        within = _shrunk((total - between) / (pairs - labels), pairs - labels)
    values, vectors = np.linalg.eigh(within)
    whiten = vectors / np.sqrt(np.maximum(values, LEAST_WITHIN))
    rows_of_label = (pairs - (counts**2).sum() / pairs) / max(labels - 1, 1)  # each, about
    means = _shrunk(whiten.T @ between @ whiten / max(labels - 1, 1), max(labels - 1, 1))
    values, vectors = np.linalg.eigh(means)
    best = np.argsort(-values, kind="stable")[:most]
    spread = np.maximum(values[best] - 1, 0) / max(rows_of_label, 1)
    directions = scale[:, None] * (whiten @ vectors[:, best])
    return Discriminant(directions, mean @ directions, spread)


def label_sums(x: Features, y: SparseRows, shard: Shard = WHOLE) -> Iterator[tuple[LabelIds, Doubles]]:
    """Labels of the shard that have rows, ascending, by own number, and the sums of their rows, (labels, features),
    piece by piece."""
    own = np.flatnonzero(shard.owns(y.indices))
    own = own[np.argsort(y.indices[own], kind="stable")]
    labels, rows = shard.to_local(y.indices[own].astype(np.int64)), y.row_numbers()[own]
    step = max(1, PIECE_BYTES // (8 * x.columns))
    label, rest = -1, np.zeros(x.columns)  # the label that the last piece ended with, and its sum so far
    for begin in range(0, len(own), step):
        ids, first = np.unique(labels[begin : begin + step], return_index=True)
        sums = np.add.reduceat(_dense(x, rows[begin : begin + step]), first, axis=0)
        if ids[0] == label:
            sums[0] += rest
        elif label >= 0:
            yield np.array([label]), rest[None]
        label, rest = int(ids[-1]), sums[-1]
        if len(ids) > 1:
            yield ids[:-1], sums[:-1]
    if label >= 0:
        yield np.array([label]), rest[None]


def _moments(x: Features, weights: Doubles) -> tuple[Doubles, Doubles]:
    """The weighted mean of rows and the sum of squares and products around it, (features, features)."""
    step = max(1, PIECE_BYTES // (8 * x.columns))
    used = np.flatnonzero(weights)
    origin = _dense(x, used[:step]).mean(axis=0)  # near the mean, so that differences lose no digits
    sums, squares = np.zeros(x.columns), np.zeros((x.columns, x.columns))
    for begin in range(0, len(used), step):
        part = used[begin : begin + step]
        rows = _dense(x, part) - origin
        rows *= np.sqrt(weights[part])[:, None]
        sums += np.sqrt(weights[part]) @ rows
        squares += rows.T @ rows
    total = weights.sum()
    return origin + sums / total, squares - np.outer(sums, sums) / total


def _dense(x: Features, rows: npt.NDArray[np.integer]) -> Doubles:
    """Some rows, (rows, features)."""
    if isinstance(x, DenseRows):
        return np.asarray(x.matrix(rows)[:, : x.columns], np.float64)
    if isinstance(x, MixedRows):
        return np.hstack([_dense(x.sparse, rows), _dense(x.dense, rows)])
    dense = np.zeros((len(rows), x.columns))
    if x.nnz == len(x) * x.columns:
        dense[...] = x.values.reshape(len(x), x.columns)[rows]
    else:
        taken = x.take(rows)
        dense[taken.row_numbers(), taken.indices] = taken.values
    return dense


def _shrunk(covariance: Doubles, freedom: float) -> Doubles:
    """A covariance that was estimated with so many degrees of freedom, shrunk to a multiple of the identity by as much
    as its eigenvalues are spread by chance: the oracle approximating shrinkage of Chen et al. 2010."""
    size = len(covariance)
    trace, squares = float(np.trace(covariance)), float((covariance**2).sum())
    spread = (freedom + 1 - 2 / size) * (squares - trace**2 / size)  # 0: all eigenvalues are equal
    wanted = (1 - 2 / size) * squares + trace**2
    share = wanted / spread if wanted < spread else 1.0
    shrunk: Doubles = (1 - share) * covariance + np.eye(size) * (share * trace / size)
    return shrunk
