"""Trains linear classifiers (model/linear.py) of interactions, after the network: each item is regressed on other items
of the same users. Every rank trains those of its own items; nothing crosses the network."""

from __future__ import annotations

import numpy as np

from dslide import _core
from dslide.data import SparseRows
from dslide.data.items import item_values
from dslide.model.linear import LinearClassifiers
from dslide.model.network import Network

COST = 0.05  # of a squared error, beside half the squared length of the weights
ENTRIES = 1 << 16  # (user, item) pairs that a regression uses, about; with more, a sample of the users: bounds the time
ITEMS = 16384  # regressed in one call; between calls an interrupt is noticed


def train_regressions(network: Network, users: SparseRows) -> LinearClassifiers:
    """Regresses own items on those of the same users, whose items are given."""
    numbers = network.shard.to_global(np.arange(network.output.neurons, dtype=np.int32))
    values = item_values(users.column_counts())  # of the rows that scores are computed for
    parts = []
    for begin in range(0, len(numbers), ITEMS):
        offsets, item, weight, bias = _core.regress_items(
            users.indptr, users.indices, network.labels, numbers[begin : begin + ITEMS], COST,
            network.config.linear_items, ENTRIES,
        )  # fmt: skip
        parts.append((offsets, item, (weight / values[item]).astype(np.float32), bias))
    return LinearClassifiers.of_parts(parts, network.features)
