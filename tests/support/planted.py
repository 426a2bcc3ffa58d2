"""Synthetic problems with a known rule, to test that a network learns: P@1 on fresh rows measures it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dslide.data import Dataset, SparseRows
from dslide.model.network import Network


@dataclass
class Problem:
    """Training and test rows, each with one label."""

    train: Dataset
    test: Dataset

    def precision(self, network: Network) -> float:
        """P@1 on the test rows."""
        ids, _ = network.predict_topk(self.test.x, 1)
        return float(np.mean(ids[:, 0] == self.test.y.indices))


def dataset(columns: np.ndarray, values: np.ndarray, features: int, truth: np.ndarray, labels: int) -> Dataset:
    """Rows of given columns and values (both [rows, elements]; 0: absent), one label each."""
    rows = np.repeat(np.arange(len(truth)), columns.shape[1])
    x = sp.csr_matrix((values.reshape(-1), (rows, columns.reshape(-1))), shape=(len(truth), features))
    x.eliminate_zeros()
    y = sp.csr_matrix((np.ones(len(truth)), (np.arange(len(truth)), truth)), shape=(len(truth), labels))
    return Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y))


def prototypes(labels: int = 2000, features: int = 1500) -> Problem:
    """Each label has eight random features; a row has six of them and two random ones. Two rows per label."""
    own = np.stack([np.random.default_rng([0, i]).choice(features, 8, replace=False) for i in range(labels)])

    def make(rows: int, seed: int) -> Dataset:
        rng = np.random.default_rng(seed)
        truth = rng.permutation(np.arange(rows) % labels)
        columns = np.hstack([rng.permuted(own[truth], axis=1)[:, :6], rng.integers(0, features, (rows, 2))])
        return dataset(columns, np.full(columns.shape, 1 / np.sqrt(8)), features, truth, labels)

    return Problem(make(2 * labels, 1), make(1000, 2))


def nested(groups: int = 200, depth: int = 5) -> Problem:
    """Labels that can only be separated by negatives of the same group: label j of a group has the group's first j
    features, so that a row of label j also scores high for labels j + 1, j + 2, ... until they are pushed down."""
    labels = groups * depth

    def make(rows: int, seed: int) -> Dataset:
        rng = np.random.default_rng(seed)
        truth = rng.permutation(np.arange(rows) % labels)
        group, member = np.divmod(truth, depth)
        noise = labels + rng.integers(0, 200, (rows, 2))
        columns = np.hstack([group[:, None] * depth + np.arange(depth), noise])
        values = np.hstack([0.5 * (np.arange(depth) <= member[:, None]), np.full((rows, 2), 0.3)])
        return dataset(columns, values, labels + 200, truth, labels)

    return Problem(make(4 * labels, 1), make(1000, 2))
