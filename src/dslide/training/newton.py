"""Newton's method for the few numbers of a calibration (calibration.py): weights of what is known of candidates, for
which the cross-entropy of the true ones is least."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from dslide.util.arrays import Ids

LARGEST_STEP, STEPS, PRECISION = 0.5, 60, 1e-3  # of any weight; passes; steps that end it

Doubles = npt.NDArray[np.float64]


def least_loss(
    values: Doubles, groups: npt.NDArray[np.integer], hits: Doubles, rows: npt.NDArray[np.integer], count: int,
    centre: Doubles, sigmoid: bool, penalty: Doubles, least: Sequence[float], largest_slope: float,
) -> Doubles:  # fmt: skip
    """The weights of each group's values, (count, values), for which the loss of the candidates is least. `rows`: of
    each candidate, in increasing order; `penalty`: on departures from `centre`; `least`: that weights can be. The first
    weight, that of logits, is at most `largest_slope`. Groups without candidates get `centre`."""
    fitted = np.tile(centre, (count, 1))
    if len(rows) == 0:
        return fitted
    used, groups = np.unique(groups, return_inverse=True)
    number, columns, parameters = len(used), len(centre), len(used) * len(centre)
    where = groups[:, None] * columns + np.arange(columns)  # (candidates, values): which parameter a value is for
    pairs = where[:, :, None] * parameters + where[:, None, :]
    products = values[:, :, None] * values[:, None, :]
    lowest, highest = np.tile(least, number), np.tile([largest_slope, *[np.inf] * (columns - 1)], number)
    start, strength = np.tile(centre, number), np.tile(penalty, number)
    loss = _SigmoidLoss(hits) if sigmoid else _SoftmaxLoss(hits, rows)
    theta = start
    for _ in range(STEPS):
        residual, weight = loss.derivatives((values * theta[where]).sum(axis=1))
        gradient = _sums(where.ravel(), (residual[:, None] * values).ravel(), parameters) + strength * (theta - start)
        second = _sums(pairs.ravel(), (weight[:, None, None] * products).ravel(), parameters**2)
        second = second.reshape(parameters, parameters) - loss.coupling(where, weight, values, parameters)
        second[np.diag_indices(parameters)] += strength
        # What a bound holds back stays there: the others are solved for without it.
        free = ~((theta <= lowest) & (gradient > 0) | (theta >= highest) & (gradient < 0))
        step = np.zeros(parameters)
        step[free] = np.linalg.solve(second[np.ix_(free, free)], gradient[free])
        largest = np.abs(step).max()
        theta = np.clip(theta - step * min(1.0, LARGEST_STEP / max(largest, LARGEST_STEP)), lowest, highest)
        if largest < PRECISION:
            break
    fitted[used] = theta.reshape(number, columns)
    return fitted


class _SigmoidLoss:
    """Binary cross-entropy of candidates."""

    def __init__(self, hits: Doubles):
        self.hits = hits

    def derivatives(self, z: Doubles) -> tuple[Doubles, Doubles]:
        """By the logit of each candidate, first and second."""
        chance = expit(z)
        return chance - self.hits, chance * (1 - chance)

    def coupling(self, where: Ids, weight: Doubles, values: Doubles, parameters: int) -> float:
        """What second derivatives by parameters are less because candidates of a row share a normaliser."""
        return 0.0


class _SoftmaxLoss:
    """Cross-entropy over a row's candidates, of rows with a hit among them."""

    def __init__(self, hits: Doubles, rows: npt.NDArray[np.integer]):
        self.begins = np.flatnonzero(np.diff(rows, prepend=-1))  # of each row's candidates
        self.row = np.repeat(np.arange(len(self.begins)), np.diff(np.append(self.begins, len(rows))))
        labels = np.add.reduceat(hits, self.begins)[self.row]
        self.counted = labels > 0
        self.wanted = hits / np.maximum(labels, 1)

    def derivatives(self, z: Doubles) -> tuple[Doubles, Doubles]:
        """By the logit of each candidate: the first, and the share of the row's sum (see `coupling`)."""
        power = np.exp(z - np.maximum.reduceat(z, self.begins)[self.row])
        share = np.where(self.counted, power / np.add.reduceat(power, self.begins)[self.row], 0)
        return share - np.where(self.counted, self.wanted, 0), share

    def coupling(self, where: Ids, weight: Doubles, values: Doubles, parameters: int) -> Doubles:
        """What second derivatives by parameters are less because candidates of a row share a normaliser: the sum over
        rows of the outer products of mean values."""
        at = self.row[:, None] * parameters + where
        means = _sums(at.ravel(), (weight[:, None] * values).ravel(), len(self.begins) * parameters)
        by_row = means.reshape(-1, parameters)
        return np.asarray(by_row.T @ by_row)


def _sums(groups: npt.NDArray[np.integer], values: Doubles, count: int) -> Doubles:
    return np.asarray(np.bincount(groups, values, count), np.float64)
