"""How good ranked predictions are: P@k, R@k, nDCG@k and PSP@k, as the Extreme Classification Repository defines them,
and coverage@k, the share of all labels that are predicted for some row. Rows come in pieces of any size, so that test
sets need not fit in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dslide.data import SparseRows

KS = (1, 3, 5)  # the ranks that results are reported at
RECOMMENDATION_KS = (1, 5, 20)  # the same for recommended items


def inverse_propensities(
    label_counts: npt.NDArray[np.integer], rows: int, a: float = 0.55, b: float = 1.5
) -> npt.NDArray[np.float64]:
    """1 / (the chance that a true label is also recorded), from how often it occurs in `rows` training rows.

    Jain et al. 2016: 1 + C (n + b)^-a with C = (ln rows - 1)(b + 1)^a. Below three rows C would be negative and is
    taken as 0, which makes all labels count the same."""
    c = max(np.log(max(rows, 1)) - 1, 0) * (b + 1) ** a
    return np.asarray(1 + c * (np.asarray(label_counts, np.float64) + b) ** -a)


class Evaluation:
    """Collects predictions piece by piece and gives the mean metrics over all rows that have labels. Without
    `label_counts` (occurrences of each label in the training data, of `rows` rows) there is no PSP@k."""

    def __init__(
        self, ks: Sequence[int] = KS, label_counts: npt.NDArray[np.integer] | None = None, rows: int = 0
    ) -> None:
        self.ks = tuple(ks)
        self.rows = 0  # rows with labels: what the means are over
        self.rows_without_labels = 0
        depth = max(self.ks)
        self._hits = np.zeros(depth)  # [rank]: how many rows have a true label at this rank
        self._recall = np.zeros(depth)  # [rank]: the same, each row weighted by 1 / its number of labels
        self._ndcg = np.zeros(depth)  # [k - 1]: sum over rows
        self._gain, self._best_gain = np.zeros((2, depth))  # [rank]: inverse propensities of hits, and at best
        self._discount = 1 / np.log2(np.arange(depth) + 2)
        self._propensity: npt.NDArray[np.float64] | None = None
        self._covered: npt.NDArray[np.int64] | None = None  # [labels]: the best rank a label was predicted at
        if label_counts is not None:
            self._covered = np.full(len(label_counts), depth, np.int64)
            # one more entry at the end: labels beyond the model's range never occurred in training
            self._propensity = inverse_propensities(np.append(label_counts, 0), rows)

    def update(self, topk_ids: npt.NDArray[np.integer], true: SparseRows) -> None:
        """Adds n rows: `topk_ids` [n, k] are distinct label ids, best first, -1 where there is none.

        Every stored entry of `true` is a true label, whatever its value. Ranks beyond k and labels that the model
        doesn't know count as misses."""
        if topk_ids.shape[0] != len(true):
            raise ValueError(f"{topk_ids.shape[0]} rows predicted, but {len(true)} rows of true labels")
        depth = len(self._hits)
        counts = np.diff(true.indptr)  # [n] true labels of each row
        labelled = counts > 0
        self.rows += int(labelled.sum())
        self.rows_without_labels += int((~labelled).sum())

        ids = np.full((len(true), depth), -1, np.int64)
        ids[:, : topk_ids.shape[1]] = topk_ids[:, :depth]
        if self._covered is not None:
            rows, ranks = np.nonzero((ids >= 0) & (ids < len(self._covered)))
            np.minimum.at(self._covered, ids[rows, ranks], ranks)
        hits = hits_of(ids, true)[labelled]  # [rows with labels, depth]
        ids, counts = ids[labelled], counts[labelled]

        self._hits += hits.sum(axis=0)
        self._recall += (hits / counts[:, None]).sum(axis=0)
        ideal = np.cumsum(self._discount)  # [labels - 1]: the DCG of that many labels ranked first
        places = np.minimum(np.arange(depth) + 1, counts[:, None])
        self._ndcg += (np.cumsum(hits * self._discount, axis=1) / ideal[places - 1]).sum(axis=0)
        if self._propensity is not None:
            self._gain += (hits * self._weight(ids)).sum(axis=0)
            self._best_gain += _best_first(self._weight(true.indices), true, depth)

    def _weight(self, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
        """The inverse propensity of each id; beyond the model's range that of a label never seen."""
        assert self._propensity is not None
        return np.asarray(self._propensity[np.clip(ids, 0, len(self._propensity) - 1)])

    def result(self) -> dict[str, float]:
        """p_at_k, r_at_k, ndcg_at_k and, where label counts are known, psp_at_k and coverage_at_k, for each k; rows
        counted and rows left out. Without any row that has labels the metrics are NaN."""
        values: dict[str, float] = {}
        rows = self.rows or np.nan
        for k in self.ks:
            values[f"p_at_{k}"] = float(self._hits[:k].sum() / (k * rows))
            values[f"r_at_{k}"] = float(self._recall[:k].sum() / rows)
            values[f"ndcg_at_{k}"] = float(self._ndcg[k - 1] / rows)
            if self._propensity is not None:
                assert self._covered is not None
                values[f"coverage_at_{k}"] = float(np.mean(self._covered < k))
                values[f"psp_at_{k}"] = float(self._gain[:k].sum() / (self._best_gain[:k].sum() or np.nan))
        return {**values, "rows": self.rows, "rows_without_labels": self.rows_without_labels}


def hits_of(ids: npt.NDArray[np.int64], true: SparseRows) -> npt.NDArray[np.bool_]:
    """[n, k]: is the id a true label of its row. Pairs (row, label) are compared as single numbers."""
    width = 1 + max(int(ids.max(initial=-1)), int(true.indices.max(initial=-1)))
    row = np.arange(len(true), dtype=np.int64)
    true_pairs = np.repeat(row, np.diff(true.indptr)) * width + true.indices
    return np.asarray(np.isin(row[:, None] * width + ids, true_pairs) & (ids >= 0))


def _best_first(weights: npt.NDArray[np.float64], true: SparseRows, depth: int) -> npt.NDArray[np.float64]:
    """[depth]: the sums over rows of each row's largest weight, its second largest, ..."""
    counts = np.diff(true.indptr)
    row = np.repeat(np.arange(len(true)), counts)
    order = np.lexsort((-weights, row))  # by row, then best first
    rank = np.arange(len(order)) - np.repeat(true.indptr[:-1] - true.indptr[0], counts)
    kept = rank < depth
    return np.asarray(np.bincount(rank[kept], weights[order][kept], depth), np.float64)
