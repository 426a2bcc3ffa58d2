"""Votes of neighbours, slow and obvious: as src/core/layers/neighbours.hpp, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def votes(
    h: np.ndarray, wanted: np.ndarray, vectors: np.ndarray, cells: np.ndarray, centres: np.ndarray,
    labels: Sequence[Sequence[int]], probes: int, count: int, power: float,
) -> np.ndarray:  # fmt: skip
    """The share of each row's neighbours, by weight, that have each wanted label; `cells` has the rows' cells."""
    found = np.zeros(wanted.shape)
    for i, row in enumerate(h):
        length = np.linalg.norm(row)
        unit = row / length if length > 0 else row
        used = np.unique(cells)
        distance = np.linalg.norm(centres[used] - unit, axis=1)
        near = np.flatnonzero(np.isin(cells, used[np.argsort(distance, kind="stable")[:probes]]))
        near = near[np.argsort(-(vectors[near] @ unit), kind="stable")[:count]]
        weights = np.maximum(vectors[near] @ unit, 0) ** power
        for j, label in enumerate(wanted[i]):
            have = [label in labels[neighbour] for neighbour in near]
            found[i, j] = weights[have].sum() / weights.sum() if weights.sum() > 0 else 0
    return found
