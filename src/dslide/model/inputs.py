"""Rows of data as what a network's first layer takes."""

from __future__ import annotations

import numpy as np

from dslide.config import Config
from dslide.data import DenseRows, Features, MixedRows, SparseRows
from dslide.data.dense_rows import all_finite
from dslide.errors import DataError
from dslide.model.activations import Dense, Input, Mixed
from dslide.model.layer import Layer
from dslide.util.arrays import Floats, aligned_zeros, padded

MOST_LINEAR = 1 << 16  # features of a network without hidden layers, in which each is multiplied with every label


def network_input(x: Features | Input, first: Layer, config: Config) -> Input:
    """Rows as the first layer takes them. A layer that has its weights by input takes sparse and dense features as
    they are. One that has them by neuron, which is the output layer of a network without hidden layers, takes dense
    activations; they are scaled, as the options say, instead of the logits."""
    rows = _activations(x, first.inputs)
    if first.sparse_input:
        return rows
    dense = _dense(rows, first)
    if config.unit_length == "none" and config.temperature == 1:
        return dense
    values = dense.values.copy() if dense is x else dense.values
    if config.unit_length != "none":
        lengths = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
        values /= np.where(lengths > 0, lengths, 1)[:, None].astype(np.float32)
    values /= np.float32(config.temperature)
    return Dense(values)


def _dense(rows: Input, first: Layer) -> Dense:
    """Rows as a matrix of all features."""
    if isinstance(rows, Dense):
        return rows
    dense = aligned_zeros(rows.rows, padded(first.inputs))
    sparse = rows.sparse if isinstance(rows, Mixed) else rows
    dense[sparse.row_numbers(), sparse.indices] = sparse.values
    if isinstance(rows, Mixed):
        dense[:, first.inputs - rows.width : first.inputs] = rows.dense.values[:, : rows.width]
    return Dense(dense)


def _activations(x: Features | Input, features: int) -> Input:
    """Rows of data as activations; DataError if they don't have the network's features."""
    if isinstance(x, SparseRows) and x.columns > features:
        raise DataError(f"rows have {x.columns} features but the network was made for {features}")
    if isinstance(x, DenseRows):
        if x.columns != features:
            raise DataError(f"dense rows have {x.columns} features but the network was made for {features}")
        return Dense(_finite(x))
    if isinstance(x, MixedRows):
        if x.columns > features:
            raise DataError(f"rows have {x.columns} features but the network was made for {features}")
        return Mixed(x.sparse, Dense(_finite(x.dense)), x.dense.columns)
    return x


def _finite(x: DenseRows) -> Floats:
    """The numbers of some rows; DataError if one is not finite: the file may have changed since it was checked."""
    values = x.matrix()
    if not all_finite(values):
        x.refuse_infinite()
    return values
