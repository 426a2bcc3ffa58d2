"""The linear discriminant label by label, without eigenvectors: slow and obvious."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


def shrunk(covariance: Matrix, freedom: float) -> Matrix:
    """Oracle approximating shrinkage, equation 23 of Chen et al. 2010."""
    p, trace = len(covariance), np.trace(covariance)
    squared = np.trace(covariance @ covariance)
    rho = ((1 - 2 / p) * squared + trace**2) / ((freedom + 1 - 2 / p) * (squared - trace**2 / p))
    rho = min(rho, 1.0)
    return (1 - rho) * covariance + rho * trace / p * np.eye(p)


def logits(x: Matrix, pairs: list[tuple[int, int]], labels: int, rows: Matrix) -> Matrix:
    """Log-likelihoods of rows, (rows, labels), up to a number for each row and without the labels' frequencies, for
    training rows `x` and (row, label) pairs. Every label has a row, and means are spread in all directions."""
    samples = np.array([x[row] for row, _ in pairs])
    mean, deviation = samples.mean(axis=0), samples.std(axis=0)
    samples, rows = (samples - mean) / deviation, (rows - mean) / deviation
    of = [samples[[label == which for _, label in pairs]] for which in range(labels)]
    within, between = np.zeros((2, x.shape[1], x.shape[1]))
    for some in of:
        centre = some.mean(axis=0)
        between += len(some) * np.outer(centre, centre)
        for row in some:
            within += np.outer(row - centre, row - centre)
    within = shrunk(within / (len(pairs) - labels), len(pairs) - labels)
    root = np.linalg.cholesky(within)
    inverse = np.linalg.inv(root)
    each = (len(pairs) - sum(len(some) ** 2 for some in of) / len(pairs)) / (labels - 1)
    whitened = shrunk(inverse @ between @ inverse.T / (labels - 1), labels - 1)
    spread = root @ (whitened - np.eye(len(root))) @ root.T / each  # of labels' means
    found = []
    for some in of:
        gain = spread @ np.linalg.inv(spread + within / len(some))
        centre = gain @ some.mean(axis=0)
        precision = np.linalg.inv(within + spread - gain @ spread)  # of a new row around what is known of the mean
        found.append(rows @ precision @ centre - centre @ precision @ centre / 2)
    return np.array(found).T
