"""Fits the calibration of a network (model/calibration.py) to rows that it was not trained on.

Labels are grouped by how many training rows they have: 0, 1, 2 to 3, 4 to 7 and so on. Of each held-out row the best
labels by logit are candidates. For each group a slope and an offset are fitted so that the loss of the candidates is
least: the network's own kind of loss, with a penalty on departures from slope 1 and offset 0 that keeps groups with few
candidates as they are. The calibration is used only if cross-validation says that it ranks better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from dslide.data import Dataset, SparseRows
from dslide.model.calibration import IDENTITY, LEAST, OFFSET, SLOPE, WORTH, on_lines
from dslide.model.network import Network
from dslide.training.metrics import Evaluation, hits_of
from dslide.util.arrays import Ids

CANDIDATES = 4  # times as many as the largest k that is reported
GROUPS = 64  # by bits of the number of rows
LEAST_QUANTILE = 0.1  # of a group's candidates: logits below keep their distances
PENALTY = np.array([30.0, 3.0])  # on slope and offset; as many candidates at even odds weigh as much
SLOPES = (0.05, 5.0)  # a label's logits keep their order
LARGEST_STEP, STEPS, PRECISION = 0.5, 60, 1e-4

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Candidates:
    """The best labels of some rows: their groups, logits, and which are true, (rows, candidates) each."""

    ids: Ids
    groups: npt.NDArray[np.int64]
    logits: Doubles
    hits: Doubles
    true: SparseRows  # the rows' labels

    def take(self, rows: npt.NDArray[np.integer]) -> Candidates:
        return Candidates(self.ids[rows], self.groups[rows], self.logits[rows], self.hits[rows], self.true.take(rows))


def calibrate(
    network: Network, data: Dataset, label_counts: npt.NDArray[np.integer], ks: Sequence[int]
) -> tuple[float, float]:
    """Calibrates the network on rows that it was not trained on, if that ranks their labels better. Returns nDCG at the
    largest k before and after: that of each half of the rows, by the calibration that the other half gives."""
    network.calibration.reset()
    found = _candidates(network, data, label_counts, CANDIDATES * max(ks))
    halves = [found.take(np.arange(half, len(found.ids), 2)) for half in (0, 1)]
    sigmoid = not network.loss.needs_labels
    raw, calibrated = Evaluation((max(ks),)), Evaluation((max(ks),))
    for fitted, other in (halves, halves[::-1]):
        lines = fit_lines(fitted, sigmoid)[other.groups]
        raw.update(other.ids, other.true)
        calibrated.update(_ranked(other, on_lines(other.logits, *np.moveaxis(lines, -1, 0))), other.true)
    before, after = (each.result()[f"ndcg_at_{max(ks)}"] for each in (raw, calibrated))
    if after > before:
        groups = _groups(label_counts)[network.shard.own]
        network.calibration.set_lines(fit_lines(found, sigmoid)[groups])
    return before, after


def fit_lines(found: Candidates, sigmoid: bool) -> Doubles:
    """Slope, offset and least logit of each group, (GROUPS, 3), by Newton's method for each group."""
    usable = found.ids >= 0
    groups, logits, hits = found.groups[usable], found.logits[usable], found.hits[usable]
    rows = np.nonzero(usable)[0]
    lines = np.tile(np.array(IDENTITY[:WORTH], np.float64), (GROUPS, 1))
    for _ in range(STEPS):
        z = lines[groups, SLOPE] * logits + lines[groups, OFFSET]
        residual, weight = _sigmoid_terms(z, hits) if sigmoid else _softmax_terms(z, hits, rows, len(found.ids))
        # of each group: the gradient of slope and offset, and their second derivatives
        gradient = np.stack([_sums(groups, residual * logits), _sums(groups, residual)], axis=1)
        gradient += PENALTY * (lines[:, :LEAST] - IDENTITY[:LEAST])
        second = np.empty((GROUPS, 2, 2))
        second[:, 0, 0], second[:, 1, 1] = _sums(groups, weight * logits**2), _sums(groups, weight)
        second[:, 0, 1] = second[:, 1, 0] = _sums(groups, weight * logits)
        second += np.diag(PENALTY)
        step = np.linalg.solve(second, gradient[:, :, None])[:, :, 0]
        # softmax: groups depend on each other through the normaliser, and take half a step each
        step = np.clip(step, -LARGEST_STEP, LARGEST_STEP) * (1.0 if sigmoid else 0.5)
        lines[:, :LEAST] -= step
        lines[:, SLOPE] = np.clip(lines[:, SLOPE], *SLOPES)
        if np.abs(step).max(initial=0) < PRECISION:
            break
    for group in np.unique(groups):
        lines[group, LEAST] = np.quantile(logits[groups == group], LEAST_QUANTILE)
    return lines


def _sigmoid_terms(z: Doubles, hits: Doubles) -> tuple[Doubles, Doubles]:
    """Derivatives of binary cross-entropy by the logit, first and second."""
    chance = expit(z)
    return chance - hits, chance * (1 - chance)


def _softmax_terms(z: Doubles, hits: Doubles, rows: npt.NDArray[np.integer], count: int) -> tuple[Doubles, Doubles]:
    """The same of cross-entropy over a row's candidates, of rows with a hit among them."""
    largest = np.full(count, -np.inf)
    np.maximum.at(largest, rows, z)
    power = np.exp(z - largest[rows])
    labels = np.bincount(rows, hits, count)[rows]
    share = power / np.bincount(rows, power, count)[rows]
    counted = labels > 0
    return np.where(counted, share - hits / np.maximum(labels, 1), 0), np.where(counted, share * (1 - share), 0)


def _sums(groups: npt.NDArray[np.integer], values: Doubles) -> Doubles:
    return np.asarray(np.bincount(groups, values, GROUPS), np.float64)


def _candidates(network: Network, data: Dataset, label_counts: npt.NDArray[np.integer], k: int) -> Candidates:
    """The k best labels of each row that has labels."""
    labelled = data.take(data.with_labels())
    ids, logits = network.predict_topk(labelled.x, min(k, network.labels), labelled.seen)
    group_of = np.append(_groups(label_counts), 0)  # the last: of id -1
    hits = hits_of(ids.astype(np.int64), labelled.y).astype(np.float64)
    return Candidates(ids, group_of[ids], logits.astype(np.float64), hits, labelled.y)


def _groups(label_counts: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """The group of each label: the number of bits of its number of rows."""
    return np.ceil(np.log2(np.asarray(label_counts, np.float64) + 1)).astype(np.int64)


def _ranked(found: Candidates, scores: Doubles) -> Ids:
    """The candidates, best first."""
    order = np.argsort(-np.where(found.ids >= 0, scores, -np.inf), axis=1, kind="stable")
    return np.take_along_axis(found.ids, order, axis=1)
