"""Data on which the loss decides what ranks first."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from support.plain import PLAIN

from dslide.data import Dataset, SparseRows

ROWS, CONTEXTS, MANY = 800, 8, 5

# With these only the loss is open of what autotune tries.
OPTIONS: dict[str, Any] = {name: value for name, value in PLAIN.items() if name != "loss"} | {
    "hidden": (16,), "batch_size": 32, "validation": 0.25, "threads": 1, "activation": "linear",
    "checkpoint_seconds": 0.0,
}  # fmt: skip


def contexts() -> Dataset:
    """Each row has one of a few contexts, which a feature tells. In a context two rows in five have one label, the
    others have five other ones. So each of the five is likelier, which sigmoid learns. But the one fills a row that has
    it, and ranking it first gives a higher nDCG@5, though not nDCG@1: softmax, which shares a row among its labels,
    does that. Rows have 3.4 labels on average, so that sigmoid is the default."""
    rng = np.random.default_rng(3)
    every = np.arange(ROWS)
    context, alone = rng.integers(0, CONTEXTS, ROWS), rng.random(ROWS) < 0.4
    x, y = np.zeros((ROWS, CONTEXTS + 40)), np.zeros((ROWS, CONTEXTS, 1 + MANY))
    x[every, context] = 1
    x[every, rng.integers(CONTEXTS, x.shape[1], ROWS)] = 0.3  # noise
    y[every[alone], context[alone], 0] = 1
    y[every[~alone], context[~alone], 1:] = 1
    parts = [SparseRows.from_scipy(sp.csr_matrix(part)) for part in (x, y.reshape(ROWS, -1))]
    return Dataset(*parts, source="contexts")
