"""Regressions of items on other items of the same users, slow and obvious: the objective of
src/core/layers/item_regressions.hpp, solved over dense matrices."""

from __future__ import annotations

import numpy as np


def products(users: np.ndarray) -> np.ndarray:
    """(items, items): over users, who have a row of ones and zeros each, the sum of 1 / sqrt(items of the user)."""
    counts = users.sum(axis=1, keepdims=True)
    return users.T @ (users / np.sqrt(np.maximum(counts, 1)))


def regress(users: np.ndarray, item: int, cost: float, most: int) -> np.ndarray:
    """The weights of all items for one, 0 for those without."""
    gram, ridge = products(users), 0.5 / cost
    others = np.flatnonzero(gram[item] > 0)
    others = others[others != item]
    gain = gram[item, others] ** 2 / (gram[others, others] + ridge)
    chosen = others[np.argsort(-gain, kind="stable")[:most]]
    weights = np.zeros(users.shape[1])
    matrix = gram[np.ix_(chosen, chosen)] + ridge * np.eye(len(chosen))
    weights[chosen] = np.linalg.solve(matrix, gram[chosen, item])
    return weights
