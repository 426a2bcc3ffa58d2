"""Sets of dense rows with labels: made here, or in folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import normalize

from dslide.data import load

DIMENSIONS = 256  # of rows made from sparse ones
TEST = 5000  # rows
Matrix = npt.NDArray[np.float32]


class Rows(NamedTuple):
    """Training and test rows, with their labels."""

    x: Matrix
    y: sp.csr_matrix
    new: Matrix
    true: sp.csr_matrix

    @classmethod
    def read(cls, folder: Path) -> Rows:
        """From train.npy, train.labels.npz, test.npy and test.labels.npz."""
        x, new = (np.load(folder / f"{part}.npy") for part in ("train", "test"))
        y, true = (sp.csr_matrix(sp.load_npz(folder / f"{part}.labels.npz")) for part in ("train", "test"))
        return cls(x, y, new, true)

    def write(self, folder: Path) -> None:
        for part, x, y in (("train", self.x, self.y), ("test", self.new, self.true)):
            np.save(folder / f"{part}.npy", x)
            sp.save_npz(folder / f"{part}.labels.npz", y)


def clusters(
    rows: int, features: int, classes: int, noise: float, *, of_class: int = 1,
    per_class: tuple[int, int] | None = None, unit: bool = False, uneven: bool = False,
) -> Rows:  # fmt: skip
    """Gaussian clusters, `of_class` of each class. `uneven`: noise and means have decaying spectra in different bases,
    and columns different scales and means."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((classes, of_class, features)).astype(np.float32)
    counts = rng.integers(per_class[0], per_class[1] + 1, classes) if per_class else np.full(classes, rows // classes)
    labels = rng.permutation(np.repeat(np.arange(classes), counts))[:rows]
    tested = rng.integers(0, classes, TEST)
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


def sums(rows: int, features: int, labels: int, noise: float) -> Rows:
    """Each row is the sum of its labels' vectors and noise, of length 1; it has 1 to 6 labels, some frequent."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((labels, features)).astype(np.float32)
    vectors *= np.arange(1, features + 1, dtype=np.float32) ** np.float32(-0.3)
    chances = np.arange(10, labels + 10) ** -0.8
    edges = np.cumsum(chances / chances.sum())

    def make(count: int) -> tuple[Matrix, sp.csr_matrix]:
        each = rng.integers(1, 7, count)
        indptr = np.concatenate([[0], np.cumsum(each)])
        drawn = np.minimum(np.searchsorted(edges, rng.random(indptr[-1])), labels - 1)
        y = sp.csr_matrix((np.ones(len(drawn), np.float32), drawn, indptr), (count, labels))
        y.sum_duplicates()
        y.data[:] = 1
        x = y @ vectors
        scale = noise * np.sqrt((x**2).mean())
        return normalize(x + scale * rng.standard_normal(x.shape)).astype(np.float32), y

    return Rows(*make(rows), *make(TEST))


def digits() -> Rows:
    """Images of handwritten digits, 8 by 8."""
    x, y = load_digits(return_X_y=True)
    test = np.random.default_rng(0).permutation(len(x)) < len(x) // 3
    x = x.astype(np.float32)
    return Rows(x[~test], one_hot(y[~test], 10), x[test], one_hot(y[test], 10))


def one_hot(labels: npt.NDArray[np.integer], classes: int) -> sp.csr_matrix:
    return sp.csr_matrix((np.ones(len(labels), np.float32), (np.arange(len(labels)), labels)), (len(labels), classes))


SETS: dict[str, Callable[[], Rows]] = {
    "clear": lambda: clusters(20_000, 384, 5000, 2.3, per_class=(4, 6)),
    "noisy": lambda: clusters(20_000, 384, 5000, 3.1, per_class=(4, 6)),
    "length-1": lambda: clusters(20_000, 384, 5000, 2.3, per_class=(4, 6), unit=True),
    "uneven": lambda: clusters(20_000, 384, 5000, 1.6, per_class=(4, 6), uneven=True),
    "mixtures": lambda: clusters(50_000, 128, 500, 1.5, of_class=3),
    "small": lambda: clusters(1000, 64, 200, 1.5),
    "wide": lambda: clusters(10_000, 1024, 2000, 1.5, uneven=True),
    "many": lambda: clusters(200_000, 128, 50_000, 1.8),
    "digits": digits,
    "sums": lambda: sums(20_000, 256, 2000, 1.0),
}


def reduced(train: str, test: str) -> Rows:
    """Sparse rows of files, as rows of a few numbers: by truncated SVD."""
    both = [load(path) for path in (train, test)]
    shapes = [max(getattr(data, what) for data in both) for what in ("features", "labels")]
    x, y = (
        [sp.csr_matrix((r.values, r.indices, r.indptr), (len(r), columns)) for r in rows]
        for rows, columns in zip(([d.x for d in both], [d.y for d in both]), shapes, strict=True)
    )
    svd = TruncatedSVD(DIMENSIONS, random_state=0).fit(normalize(x[0]))
    first, second = (svd.transform(normalize(each)).astype(np.float32) for each in x)
    return Rows(first, y[0], second, y[1])
