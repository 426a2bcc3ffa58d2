"""Slow, obvious versions of the look-up of output neurons: src/core/layers/candidates.cpp and model/cells.py."""

from __future__ import annotations

import numpy as np


def best_of_prior(values: dict[int, float], bias: np.ndarray, want: int) -> list[int]:
    """The neurons with the largest prior plus bias, ties to the lower one; ascending."""
    order = sorted(values, key=lambda neuron: (-np.float32(values[neuron] + bias[neuron]), neuron))
    return sorted(order[:want])


def joined(first: list[int], more: list[int], excluded: list[int]) -> list[int]:
    return sorted((set(first) | set(more)) - set(excluded))


def nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The nearest centre of each row."""
    distances = ((rows[:, None, :].astype(np.float64) - centres[None]) ** 2).sum(axis=2)
    return distances.argmin(axis=1)


def k_means(rows: np.ndarray, cells: int, rounds: int) -> np.ndarray:
    """Centres that begin at rows at even distances; a centre without rows moves to the row furthest from its own."""
    starts = np.unique(np.linspace(0, len(rows) - 1, cells).astype(int))
    centres = rows[starts].astype(np.float64)
    for _ in range(rounds):
        cell = nearest(rows, centres)
        distances = ((rows - centres[cell]) ** 2).sum(axis=1)
        furthest = iter(np.argsort(-distances, kind="stable"))
        left = len(rows) - len(set(cell))
        moved = centres.copy()
        for i in range(len(centres)):
            if (cell == i).any():
                moved[i] = rows[cell == i].astype(np.float64).mean(axis=0)
            elif left > 0:
                moved[i] = rows[next(furthest)]
                left -= 1
        centres = moved
    return centres


def best_labels(vectors: np.ndarray, weights: np.ndarray, bias: np.ndarray, count: int) -> np.ndarray:
    """The labels with the largest logits of each vector, best first, ties to the lower one."""
    return np.argsort(-(vectors @ weights.T + bias), axis=1, kind="stable")[:, :count]
