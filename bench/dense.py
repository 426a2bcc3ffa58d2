"""Accuracy on dense rows with defaults, beside simple methods, on data that is made here:

    python -m bench.dense [SET ...] [--threads 1]

`--text TRAIN TEST` adds rows of 256 numbers made from sparse rows in files, by truncated SVD. Prints P@1 / P@3 / P@5 on
test rows: nearest centroid by cosine and by distance, scikit-learn's linear discriminant (one label a row), dslide.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.decomposition import TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import normalize

from dslide import Callback, SlideClassifier, ValidationInfo
from dslide.data import load

KS = (1, 3, 5)
DIMENSIONS = 256  # of rows made from sparse ones
Matrix = npt.NDArray[np.float32]


class Rows(NamedTuple):
    """Training and test rows."""

    x: Matrix
    y: sp.csr_matrix
    new: Matrix
    true: sp.csr_matrix


def clusters(
    rows: int, features: int, classes: int, noise: float, *, of_class: int = 1,
    per_class: tuple[int, int] | None = None, unit: bool = False, uneven: bool = False, test: int = 5000,
) -> Rows:  # fmt: skip
    """Gaussian clusters, `of_class` of each class. `uneven`: noise and means have decaying spectra in different bases,
    and columns different scales and means."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((classes, of_class, features)).astype(np.float32)
    counts = rng.integers(per_class[0], per_class[1] + 1, classes) if per_class else np.full(classes, rows // classes)
    labels = rng.permutation(np.repeat(np.arange(classes), counts))[:rows]
    tested = rng.integers(0, classes, test)
    spread, scale, offset = np.float32(noise) * np.eye(features, dtype=np.float32), np.float32(1), np.float32(0)
    if uneven:
        sizes = np.arange(1, features + 1) ** -0.5
        sizes *= noise / np.sqrt((sizes**2).mean())
        first, second = (np.linalg.qr(rng.standard_normal((features, features)))[0] for _ in range(2))
        spread = (sizes[:, None] * first).astype(np.float32)
        means = means @ (np.arange(1, features + 1)[:, None] ** -0.25 * second).astype(np.float32)
        scale = np.exp(2 * rng.standard_normal(features)).astype(np.float32)
        offset = 3 * rng.standard_normal(features).astype(np.float32)

    def make(which: npt.NDArray[np.int64]) -> Matrix:
        x = means[which, rng.integers(0, of_class, len(which))]
        x = (x + rng.standard_normal((len(x), features), np.float32) @ spread + offset) * scale
        return normalize(x) if unit else x

    return Rows(make(labels), one_hot(labels, classes), make(tested), one_hot(tested, classes))


def one_hot(labels: npt.NDArray[np.int64], classes: int) -> sp.csr_matrix:
    return sp.csr_matrix((np.ones(len(labels), np.float32), (np.arange(len(labels)), labels)), (len(labels), classes))


SETS: dict[str, Callable[[], Rows]] = {
    "clear": lambda: clusters(20_000, 384, 5000, 2.3, per_class=(4, 6)),
    "noisy": lambda: clusters(20_000, 384, 5000, 3.1, per_class=(4, 6)),
    "length 1": lambda: clusters(20_000, 384, 5000, 2.3, per_class=(4, 6), unit=True),
    "uneven": lambda: clusters(20_000, 384, 5000, 1.6, per_class=(4, 6), uneven=True),
    "mixtures": lambda: clusters(50_000, 128, 500, 1.5, of_class=3),
    "small": lambda: clusters(1000, 64, 200, 1.5),
    "wide": lambda: clusters(10_000, 1024, 2000, 1.5, uneven=True),
    "many": lambda: clusters(200_000, 128, 50_000, 1.8),
}


def reduced(train: str, test: str) -> Rows:
    """Sparse rows of files, as rows of a few numbers."""
    both = [load(path) for path in (train, test)]
    shapes = [max(getattr(data, what) for data in both) for what in ("features", "labels")]
    x, y = (
        [sp.csr_matrix((r.values, r.indices, r.indptr), (len(r), columns)) for r in rows]
        for rows, columns in zip(([d.x for d in both], [d.y for d in both]), shapes, strict=True)
    )
    svd = TruncatedSVD(DIMENSIONS, random_state=0).fit(normalize(x[0]))
    first, second = (svd.transform(normalize(each)).astype(np.float32) for each in x)
    return Rows(first, y[0], second, y[1])


# ---- methods --------------------------------------------------------------------------------------------------------


def best(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    some = np.argpartition(-scores, max(KS), axis=1)[:, : max(KS)]
    return np.take_along_axis(some, np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1), axis=1)


def centroids(rows: Rows, cosine: bool) -> npt.NDArray[np.int64]:
    counts = np.asarray(rows.y.sum(axis=0)).ravel()
    means = np.asarray(rows.y.T @ rows.x) / np.maximum(counts, 1)[:, None]
    bias = np.zeros(len(means)) if cosine else -0.5 * (means**2).sum(axis=1)
    bias[counts == 0] = -np.inf
    means = normalize(means) if cosine else means
    return np.concatenate(
        [best(part @ means.T + bias) for part in np.array_split(rows.new, max(1, len(rows.new) // 250))]
    )


def scikit_learn(rows: Rows) -> npt.NDArray[np.int64]:
    model = LinearDiscriminantAnalysis().fit(rows.x, rows.y.indices)
    return model.classes_[best(model.decision_function(rows.new))]


class Start(Callback):
    """When training begins, and what it begins with."""

    def on_start(self, trainer: Any, total_steps: int) -> None:
        self.began = time.perf_counter()

    def on_validation(self, trainer: Any, info: ValidationInfo) -> None:
        print(f"    epoch {info.epoch}: {info.metric} {info.metrics[info.metric]:.4f} on held-out rows")


def report(what: str, rows: Rows, ids: npt.NDArray[np.int64], seconds: str) -> None:
    hits = np.array([np.isin(row, true.indices) for row, true in zip(ids, rows.true, strict=True)])
    print(f"  {what:22} {' / '.join(f'{hits[:, :k].mean():.3f}' for k in KS)}  {seconds}", flush=True)


def measure(rows: Rows, threads: int) -> None:
    one = rows.y.nnz == rows.y.shape[0]
    for name, cosine in (("centroids, cosine", True), ("centroids, distance", False)):
        report(name, rows, centroids(rows, cosine), "")
    if one and rows.y.shape[1] <= 500:  # takes minutes for thousands
        begin = time.perf_counter()
        report("scikit-learn's LDA", rows, scikit_learn(rows), f"{time.perf_counter() - begin:.1f} s")
    begin, start = time.perf_counter(), Start()
    model = SlideClassifier(threads=threads).fit(rows.x, rows.y, callbacks=[start])
    seconds = f"{time.perf_counter() - begin:.1f} s, {start.began - begin:.1f} s of them before the first step"
    report("dslide, defaults", rows, model.predict_topk(rows.new, max(KS))[0], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"some of {', '.join(SETS)}; none: all")
    parser.add_argument("--text", nargs=2, action="append", default=[], metavar=("TRAIN", "TEST"))
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    made = {name: SETS[name] for name in (given.sets or ([] if given.text else SETS))}
    made |= {train: lambda train=train, test=test: reduced(train, test) for train, test in given.text}  # type: ignore[misc]
    for name, make in made.items():
        rows = make()
        shape = f"{len(rows.x):,} rows of {rows.x.shape[1]} features, {rows.y.shape[1]:,} labels"
        print(f"{name}: {shape}, {rows.y.nnz / len(rows.x):.1f} a row", flush=True)
        measure(rows, given.threads)


if __name__ == "__main__":
    main()
