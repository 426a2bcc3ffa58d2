"""A slow, obvious label prior: counted row by row, with dense matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide.data import SparseRows
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


@dataclass
class SlowLabelPrior:
    """`weight` (features, labels) is 0 where a feature does not count for a label; `share` (labels)."""

    weight: Matrix
    share: Matrix

    @classmethod
    def count(cls, x: SparseRows, y: SparseRows, most: int, skip_same: bool, power: float) -> SlowLabelPrior:
        lengths = lengths_of(x)
        centroids: list[dict[int, float]] = [{} for _ in range(y.columns)]
        together: list[dict[int, float]] = [{} for _ in range(x.columns)]
        for i, length in enumerate(lengths):
            labels = y.indices[y.indptr[i] : y.indptr[i + 1]].tolist()
            for e in range(x.indptr[i], x.indptr[i + 1]):
                feature, unit = int(x.indices[e]), float(x.values[e]) / length
                for label in labels:
                    centroids[label][feature] = centroids[label].get(feature, 0.0) + unit
                    together[feature][label] = together[feature].get(label, 0.0) + float(np.float32(unit))
        share = np.zeros(y.columns, np.float32)
        for label, centroid in enumerate(centroids):
            square = 0.0
            for part in centroid.values():
                square += part * part
            share[label] = square ** (-power / 2) if square > 0 else 0
        weight = np.zeros((x.columns, y.columns))
        for feature, sums in enumerate(together):
            found = [(float(np.float32(total) * share[label]), label) for label, total in sums.items()]
            found = [(w, label) for w, label in found if w != 0 and not (skip_same and label == feature)]
            for w, label in sorted(found, key=lambda pair: (-pair[0], pair[1]))[:most]:
                weight[feature, label] = w
        return cls(weight, share.astype(np.float64))

    @classmethod
    def of_arrays(cls, begin: Any, neuron: Any, weight: Any, share: Any) -> SlowLabelPrior:
        """From the arrays of the fast one."""
        whole = np.zeros((len(begin) - 1, len(share)))
        whole[np.repeat(np.arange(len(begin) - 1), np.diff(begin)), neuron] = weight
        return cls(whole, share.astype(np.float64))

    def added(self, x: Matrix, scale: float, lengths: Any = None, own: Any = None, keep: float = 1.0) -> Matrix:
        """What rows `x` (rows, features) add to logits; `own` (rows, labels) are the labels of rows in training."""
        units = x / np.asarray(lengths_of(SparseRows.from_scipy(x)) if lengths is None else lengths)[:, None]
        total = units @ self.weight
        if own is not None:
            itself = keep * units**2 @ (self.weight != 0)
            total = total - np.where(own, itself * self.share, 0)
        return scale * total
