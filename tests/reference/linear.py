"""The support-vector machine of one label, slow and obvious: the objective of src/core/layers/linear_classifiers.hpp,
minimised by a general optimizer over dense rows."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize


def objective(w: np.ndarray, x: np.ndarray, signs: np.ndarray, cost: float) -> tuple[float, np.ndarray]:
    """The loss of weights, of which the last is the bias, and its gradient; x: rows of length 1."""
    x = np.hstack([x, np.ones((len(x), 1))])
    margin = np.maximum(0, 1 - signs * (x @ w))
    return w @ w / 2 + cost * (margin**2).sum(), w - 2 * cost * (margin * signs) @ x


def train(x: np.ndarray, positive: np.ndarray, negative: np.ndarray, cost: float) -> np.ndarray:
    """The weights of a label, and its bias, from the numbers of its rows and of others."""
    rows = np.concatenate([positive, negative])
    signs = np.concatenate([np.ones(len(positive)), -np.ones(len(negative))])
    options = {"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-9}
    start = np.zeros(x.shape[1] + 1)
    return minimize(objective, start, (x[rows], signs, cost), "L-BFGS-B", jac=True, options=options).x
