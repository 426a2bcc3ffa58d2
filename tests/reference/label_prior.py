"""A slow, obvious label prior: counted row by row, added and trained with dense matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide.data import SparseRows
from dslide.model.label_prior import LabelPrior
from dslide.util.csr import Csr

Matrix = npt.NDArray[np.float64]


def lengths_of(x: Csr) -> list[float]:
    """Euclidean lengths of rows; 1 for rows of zeros."""
    offsets = x.indptr
    lengths = []
    for begin, end in pairwise(offsets.tolist()):
        square = 0.0
        for value in x.values[begin:end].tolist():
            square += value * value
        lengths.append(math.sqrt(square) if square > 0 else 1.0)
    return lengths


def bucket(rows: int) -> int:
    """Whose scale a label with so many rows has: up to 3, 4 to 7, ..."""
    return max(2, rows).bit_length()


@dataclass
class SlowLabelPrior:
    """`weight` (features, labels), counted, is 0 where a feature does not count for a label; `share` and `rows`
    (labels). `trained` (features, labels) and `scale` (buckets) are those of a prior whose training begins."""

    weight: Matrix
    share: Matrix
    rows: npt.NDArray[np.int64]
    trained: Matrix
    scale: Matrix

    @classmethod
    def count(
        cls, x: SparseRows, y: SparseRows, most: int, skip_same: bool, power: float, scale: float = 1.0,
        by_gain: bool = False,
    ) -> SlowLabelPrior:  # fmt: skip
        lengths = lengths_of(x)
        centroids: list[dict[int, float]] = [{} for _ in range(y.columns)]
        together: list[dict[int, float]] = [{} for _ in range(x.columns)]
        both: list[dict[int, int]] = [{} for _ in range(x.columns)]
        of_feature, of_label = [0] * x.columns, [0] * y.columns
        for i, length in enumerate(lengths):
            labels = y.indices[y.indptr[i] : y.indptr[i + 1]].tolist()
            for label in labels:
                of_label[label] += 1
            for e in range(x.indptr[i], x.indptr[i + 1]):
                feature, unit = int(x.indices[e]), float(x.values[e]) / length
                of_feature[feature] += 1
                for label in labels:
                    centroids[label][feature] = centroids[label].get(feature, 0.0) + unit
                    together[feature][label] = together[feature].get(label, 0.0) + float(np.float32(unit))
                    both[feature][label] = both[feature].get(label, 0) + 1
        share = np.zeros(y.columns, np.float32)
        for label, centroid in enumerate(centroids):
            square = 0.0
            for part in centroid.values():
                square += part * part
            share[label] = square ** (-power / 2) if square > 0 else 0
        weight = np.zeros((x.columns, y.columns))
        for feature, sums in enumerate(together):
            found = []
            for label, total in sums.items():
                n = float(both[feature][label])
                gain = n * math.log(n * len(lengths) / (float(of_feature[feature]) * of_label[label]))
                w = float(np.float32(total) * share[label])
                if w != 0 and not (skip_same and label == feature):
                    found.append((-gain if by_gain else -w, label, w))
            for _, label, w in sorted(found)[:most]:
                weight[feature, label] = w
        untrained, scales = np.zeros_like(weight), np.full(32, scale)
        return cls(weight, share.astype(np.float64), np.array(of_label), untrained, scales)

    @classmethod
    def of_prior(cls, prior: LabelPrior) -> SlowLabelPrior:
        """From the arrays of the fast one."""
        arrays = prior.arrays
        begin, share = arrays["begin"], arrays["share"]
        feature = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
        weight, trained = (np.zeros((len(begin) - 1, len(share))) for _ in range(2))
        weight[feature, arrays["neuron"]] = arrays["weight"]
        if prior.is_trained:
            trained[feature, arrays["neuron"]] = arrays["trained"]
        return cls(weight, share.astype(np.float64), arrays["rows"], trained, arrays["scale"].astype(np.float64))

    def units(self, x: Matrix, lengths: Any = None) -> Matrix:
        """Rows scaled to length 1."""
        scaled: Matrix = x / np.asarray(lengths_of(SparseRows.from_scipy(x)) if lengths is None else lengths)[:, None]
        return scaled

    def counted(self, units: Matrix, own: Any = None, keep: float = 1.0) -> Matrix:
        """What the counted weights add, before their scale; `own` (rows, labels) are the labels of rows in training."""
        total = units @ self.weight
        if own is not None:
            total = total - np.where(own, keep * units**2 @ (self.weight != 0) * self.share, 0)
        return total

    @property
    def buckets(self) -> npt.NDArray[np.int64]:
        """Whose scale each label has."""
        return np.array([bucket(int(n)) for n in self.rows])

    def added(self, x: Matrix, lengths: Any = None, own: Any = None, keep: float = 1.0) -> Matrix:
        """What rows `x` (rows, features) add to logits."""
        units = self.units(x, lengths)
        return self.scale[self.buckets] * self.counted(units, own, keep) + units @ self.trained

    def learn(self, x: Matrix, gradient: Matrix, rate: float, own: Any, lengths: Any = None) -> Matrix:
        """One step on the trained weights along the gradients of logits, (rows, labels), of the mean loss of rows, 0
        where a label is not active; returns the gradient of the scales."""
        units, linked = self.units(x, lengths), self.weight != 0
        reached = (units != 0).astype(float) @ linked > 0
        gradient = np.where(reached, gradient, 0)
        load = len(x) * np.abs(gradient).sum(axis=0)
        step = rate * len(x) * np.minimum(1, 4 / np.maximum(load, 1e-30))
        by_scale = np.zeros_like(self.scale)
        by_label = (gradient * self.counted(units, own)).sum(axis=0)
        np.add.at(by_scale, self.buckets, np.where(self.rows > 1, by_label, 0))
        self.trained = self.trained - np.where(linked, step * (units.T @ gradient), 0)
        return by_scale
