"""Simple methods for dense rows: each returns the best labels of the test rows, and what it has chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import expit
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from bench.dense.sets import Matrix, Rows

KS = (1, 3, 5)
Ids = npt.NDArray[np.integer]
BLOCK = 256  # test rows that are scored at a time
NEIGHBOURS = (1, 5, 10, 20, 50)  # that are tried
SHARPNESS = (0.0, 1.0, 3.0)  # of their weights: a neighbour as far off as the last one weighs exp(-this) of the nearest
HELD_OUT = 2000  # training rows on which the number of neighbours is chosen, or a tenth
LABELS = 512  # logistic regressions that are trained at a time
SAMPLE = 30  # labels that scikit-learn's own logistic regression is timed on
TOLERANCE = 1e-4  # of the gradient, as scikit-learn's


def best(scores: npt.NDArray[Any]) -> Ids:
    """The best labels of each row of scores, best first."""
    count = min(max(KS), scores.shape[1])
    some = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    return np.take_along_axis(some, np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1), axis=1)


def by_block(new: Matrix, weights: npt.NDArray[Any], bias: npt.NDArray[Any]) -> Ids:
    """The best labels by linear scores."""
    parts = np.array_split(new, max(1, len(new) // BLOCK))
    return np.concatenate([best(part @ weights.T + bias) for part in parts])


def centroids(rows: Rows, cosine: bool) -> Ids:
    counts = np.asarray(rows.y.sum(axis=0)).ravel()
    means = np.asarray(rows.y.T @ rows.x) / np.maximum(counts, 1)[:, None]
    bias = np.zeros(len(means), np.float32) if cosine else -0.5 * (means**2).sum(axis=1)
    bias[counts == 0] = -np.inf
    return by_block(rows.new, normalize(means) if cosine else means, bias)


def discriminant(rows: Rows) -> Ids:
    """scikit-learn's, of data with one label a row."""
    model = LinearDiscriminantAnalysis().fit(rows.x, rows.y.indices)
    return np.asarray(model.classes_[best(model.decision_function(rows.new))])


# ---- neighbours -----------------------------------------------------------------------------------------------------


def neighbours(rows: Rows, threads: int) -> tuple[Ids, str]:
    """FAISS, exact: the labels of the nearest rows vote. Distance or cosine, how many and how sharply their weights
    fall is chosen on held-out training rows."""
    mixed = np.random.default_rng(0).permutation(len(rows.x))
    held_out, kept = np.split(mixed, [min(HELD_OUT, len(rows.x) // 10)])
    some = Rows(rows.x[kept], rows.y[kept], rows.x[held_out], rows.y[held_out])
    tried = {}
    for cosine in (True, False):
        for count, sharp, ids in _votes(some, cosine, NEIGHBOURS, SHARPNESS, threads):
            tried[cosine, count, sharp] = precisions(ids, some.true).mean()
    cosine, count, sharp = max(tried, key=lambda key: tried[key])
    ((_, _, ids),) = _votes(rows, cosine, [count], [sharp], threads)
    return ids, f"{count} by {'cosine' if cosine else 'distance'}, weights exp(-{sharp:g} ...)"


def _votes(rows: Rows, cosine: bool, counts: Any, sharpness: Any, threads: int) -> Iterator[tuple[int, float, Ids]]:
    import faiss

    faiss.omp_set_num_threads(threads)
    x, new = (normalize(each) if cosine else np.ascontiguousarray(each) for each in (rows.x, rows.new))
    index = faiss.IndexFlatL2(x.shape[1])
    index.add(x)
    squares, ids = index.search(new, min(max(counts), len(x)))
    for count in counts:
        near, found = np.sqrt(np.maximum(squares[:, :count], 0)), ids[:, :count]
        span = np.maximum(near[:, -1:] - near[:, :1], 1e-12)
        for sharp in sharpness:
            weights = np.exp(-sharp * (near - near[:, :1]) / span) + 1e-6 * (1 - np.arange(near.shape[1]) / count)
            at = np.arange(len(new) + 1) * near.shape[1]
            votes = sp.csr_matrix((weights.ravel(), found.ravel(), at), (len(new), len(x))) @ rows.y
            yield count, sharp, _best_of_sparse(sp.csr_matrix(votes))


def _best_of_sparse(scores: sp.csr_matrix) -> Ids:
    """The best labels of each row, -1 where there are no more."""
    found = np.full((scores.shape[0], max(KS)), -1)
    for row, (begin, end) in enumerate(zip(scores.indptr, scores.indptr[1:], strict=False)):
        order = np.argsort(-scores.data[begin:end], kind="stable")[: max(KS)]
        found[row, : len(order)] = scores.indices[begin:end][order]
    return found


def precisions(ids: Ids, true: sp.csr_matrix) -> npt.NDArray[np.float64]:
    """P@1, P@3 and P@5."""
    hits = np.array([np.isin(row, labels.indices) for row, labels in zip(ids, true, strict=True)])
    return np.array([hits[:, :k].sum() / (k * len(hits)) for k in KS])


# ---- logistic regression --------------------------------------------------------------------------------------------


def one_vs_rest(rows: Rows, cost: float) -> tuple[Ids, str]:
    """A logistic regression for each label, as scikit-learn's LogisticRegression(C=cost) defines it and to its
    tolerance, but many labels at a time: truncated Newton steps with conjugate gradients, whose products with the rows
    are products of matrices."""
    counts = np.asarray(rows.y.sum(axis=0)).ravel()
    known = np.flatnonzero(counts)
    x = np.concatenate([rows.x, np.ones((len(rows.x), 1), np.float32)], axis=1)
    columns = rows.y.tocsc()
    fitted = np.concatenate(
        [_newton(x, columns[:, part], cost) for part in np.array_split(known, -(-len(known) // LABELS))], axis=1
    )
    weights, bias = np.zeros((len(counts), rows.x.shape[1]), np.float32), np.full(len(counts), -np.inf, np.float32)
    weights[known], bias[known] = fitted[:-1].T, fitted[-1]
    return by_block(rows.new, weights, bias), ""


def scikit_one_vs_rest(rows: Rows, cost: float) -> tuple[float, float]:
    """Seconds that scikit-learn takes for all labels, from a sample of them, and the largest difference in the scores
    of test rows from those of `one_vs_rest`."""
    import time

    known = np.flatnonzero(np.asarray(rows.y.sum(axis=0)).ravel())
    some = np.sort(np.random.default_rng(0).permutation(known)[:SAMPLE])
    columns = rows.y.tocsc()
    begin, scores = time.perf_counter(), []
    for label in some:
        model = LogisticRegression(C=cost, max_iter=1000, tol=TOLERANCE)
        model.fit(rows.x, columns[:, [label]].toarray().ravel() > 0)
        scores.append(model.decision_function(rows.new))
    seconds = (time.perf_counter() - begin) * len(known) / len(some)
    x = np.concatenate([rows.x, np.ones((len(rows.x), 1), np.float32)], axis=1)
    fitted = _newton(x, columns[:, some], cost)
    mine = rows.new @ fitted[:-1] + fitted[-1]
    return seconds, float(np.abs(mine - np.transpose(scores)).max())


def _newton(x: Matrix, y: sp.csc_matrix, cost: float) -> Matrix:
    """The weights, (features, labels); the last one, of the column of ones, is without a penalty."""
    n, labels = y.shape
    targets = y.toarray().astype(np.float32)
    share = targets.mean(axis=0)
    w = np.zeros((x.shape[1], labels), np.float32)
    w[-1] = np.log(share / np.maximum(1 - share, 1e-6))
    penalty = np.full((len(w), 1), 1 / (cost * n), np.float32)
    penalty[-1] = 0
    squares = (x**2).T
    z = x @ w
    loss = _losses(z, targets, w, penalty)
    for _ in range(100):
        chance = expit(z)
        gradient = x.T @ (chance - targets) / n + penalty * w
        largest = np.abs(gradient).max(axis=0)
        if largest.max() <= TOLERANCE:
            break
        second = chance * (1 - chance) / n
        precondition = 1 / (squares @ second + penalty + 1e-12)
        step, moved = _conjugate_gradients(x, second, penalty, precondition, gradient)
        rate = (largest > TOLERANCE).astype(np.float32)
        for _ in range(20):  # halved where the loss rises
            tried = _losses(z + rate * moved, targets, w + rate * step, penalty)
            if not (worse := (tried > loss + 1e-7) & (rate > 0)).any():
                break
            rate = np.where(worse, rate / 2, rate)
        w, z, loss = w + rate * step, z + rate * moved, tried
    return w


def _losses(z: Matrix, targets: Matrix, w: Matrix, penalty: Matrix) -> Matrix:
    each: Matrix = (np.logaddexp(0, z) - targets * z).mean(axis=0) + 0.5 * (penalty * w**2).sum(axis=0)
    return each


def _conjugate_gradients(
    x: Matrix, second: Matrix, penalty: Matrix, precondition: Matrix, gradient: Matrix
) -> tuple[Matrix, Matrix]:
    """Newton steps of all labels, and what they change in the scores of rows."""
    step, moved = np.zeros_like(gradient), np.zeros_like(second)
    rest = -gradient
    scaled = precondition * rest
    direction, product = scaled, (rest * scaled).sum(axis=0)
    enough = 0.01 * product
    for _ in range(50):
        of_rows = x @ direction
        curved = x.T @ (second * of_rows) + penalty * direction
        along = (direction * curved).sum(axis=0)
        rate = np.where(along > 0, product / np.where(along > 0, along, 1), 0)
        step, moved, rest = step + rate * direction, moved + rate * of_rows, rest - rate * curved
        scaled = precondition * rest
        after = (rest * scaled).sum(axis=0)
        if (after <= enough).all():
            break
        direction = scaled + np.where(product > 0, after / np.where(product > 0, product, 1), 0) * direction
        product = after
    return step, moved
