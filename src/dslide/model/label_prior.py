"""The label prior: what features score for labels directly, beside the hidden layers.

A sparse matrix of feature-label weights, counted from co-occurrences before training and not trained. It separates rare
labels that a narrow hidden layer can't. src/core/layers/label_prior.hpp has the formulas. Each rank holds the weights
of its own labels; nothing of the prior crosses the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dslide import _core
from dslide._core import ActiveSet
from dslide.config import Config
from dslide.data import SparseRows
from dslide.errors import ModelError
from dslide.model.sharding import Shard
from dslide.model.storage import checked
from dslide.util.arrays import Array, Floats
from dslide.util.csr import Csr, Lists

Arrays = dict[str, Array]
Lengths = npt.NDArray[np.float64]

PREFIX = "prior."  # of the names of its arrays among those of a network
TYPES: dict[str, np.dtype[Any]] = {
    "begin": np.dtype(np.int64),
    "neuron": np.dtype(np.int32),
    "weight": np.dtype(np.float32),
    "share": np.dtype(np.float32),
}


def has_label_prior(config: Config) -> bool:
    """Whether a network has a label prior. It needs active sets that rows share and dense hidden layers."""
    dense = all(share == 1 for share in config.hidden_share)
    return config.prior_labels > 0 and config.active_sets == "shared" and dense


class LabelPrior:
    """The prior of one shard's labels.

    `begin` (features + 1), `neuron` (own number of the label) and `weight` are lists by feature; `share` (own labels)
    is what a row of length 1 contributes to the weights of a label that it has. The arrays are not written to, and may
    be mapped from a file.
    """

    def __init__(self, begin: Array, neuron: Array, weight: Array, share: Array, scale: float) -> None:
        self.begin, self.neuron, self.weight, self.share = begin, neuron, weight, share
        self._native = _core.LabelPrior(begin, neuron, weight, share, scale)

    @classmethod
    def count(
        cls, x: SparseRows, y: SparseRows, features: int, labels: int, config: Config, shard: Shard, same: bool
    ) -> LabelPrior:
        """Counts co-occurrences in training data. `same`: features and labels are the same items, and none scores
        itself. Every rank counts all and keeps its own."""
        begin, neuron, weight, share = _core.count_label_prior(
            x.indptr, x.indices, x.values, features, y.indptr, y.indices, labels, config.prior_labels,
            config.prior_power, same, shard.rank, shard.size,
        )  # fmt: skip
        return cls(begin, neuron, weight, share, config.prior_scale)

    @classmethod
    def of_state(cls, arrays: Mapping[str, Array], features: int, neurons: int, scale: float) -> LabelPrior:
        """From the arrays of a saved network; ModelError if they are damaged."""
        begin = _checked(arrays, "begin", features + 1)
        size = max(0, int(begin[-1]))
        lists = (begin, _checked(arrays, "neuron", size), _checked(arrays, "weight", size))
        try:
            return cls(*lists, _checked(arrays, "share", neurons), scale)
        except ValueError as error:
            raise ModelError(f"the label prior of the network is damaged: {error}") from None

    def state(self) -> Arrays:
        """The arrays, by their names in a network."""
        return {PREFIX + name: getattr(self, name) for name in TYPES}

    def add(
        self, x: Csr, lengths: Lengths, active: ActiveSet, own: Lists | None = None, keep: float = 1.0,
        boost: float = 1.0,
    ) -> None:  # fmt: skip
        """Adds the prior of rows to the logits of an active set. `lengths`: Euclidean lengths of the rows before input
        dropout, which kept the share `keep`; `own`: labels of the rows, whose own contribution to the counts is left
        out (leave-one-out) in training; `boost`: factor on what is added."""
        own_indptr, own_indices = (None, None) if own is None else (own.indptr, own.indices)
        with np.errstate(divide="ignore"):  # a factor of 0 makes rows infinitely long, and their values 0
            lengths = lengths / boost
        self._native.add(x.indptr, x.indices, x.values, lengths, active, own_indptr, own_indices, keep)


def prior_arrays(arrays: Mapping[str, Array]) -> Arrays:
    """The label prior's arrays among those of a network; none if it has none."""
    return {name: arrays[name] for name in arrays if name.startswith(PREFIX)}


def prior_logits(active: ActiveSet, lists: Lists, neurons: int) -> Floats:
    """What the prior adds to the logits of some (row, own neuron) pairs, a value each; `active` is all neurons."""
    if len(active.prior_begin) == 0:
        return np.zeros(lists.nnz, np.float32)
    added = sp.csr_matrix((active.prior_value, active.prior_position, active.prior_begin), (lists.rows, neurons))
    return np.asarray(added[lists.row_numbers(), lists.indices], np.float32).reshape(-1)


def row_lengths(x: Csr) -> Lengths:
    """The Euclidean length of each row; 1 for rows of length 0."""
    lengths: Lengths = _core.row_norms(x.indptr, x.values)
    return lengths


def regrouped(parts: Sequence[tuple[Shard, Mapping[str, Array]]], shard: Shard) -> Arrays:
    """Reshards: the arrays of one shard's prior, by their names in a network, from those of all shards that have labels
    in common with it."""
    features = len(parts[0][1][PREFIX + "begin"]) - 1
    feature, label, weight, number, share = [], [], [], [], []
    for writer, arrays in parts:
        begin, neuron, weights, shares = (arrays[PREFIX + name] for name in TYPES)
        labels = neuron.astype(np.int64) * writer.size + writer.rank
        kept = labels % shard.size == shard.rank
        feature.append(np.repeat(np.arange(features), np.diff(begin))[kept])
        label.append(labels[kept] // shard.size)
        weight.append(weights[kept])
        every = np.arange(len(shares)) * writer.size + writer.rank
        mine = every % shard.size == shard.rank
        number.append(every[mine])
        share.append(shares[mine])
    of_feature, of_label = np.concatenate(feature), np.concatenate(label)
    order = np.lexsort((of_label, of_feature))
    made = {
        "begin": np.searchsorted(of_feature[order], np.arange(features + 1)),
        "neuron": of_label[order],
        "weight": np.concatenate(weight)[order],
        "share": np.concatenate(share)[np.argsort(np.concatenate(number))],
    }
    return {PREFIX + name: made[name].astype(dtype) for name, dtype in TYPES.items()}


def _checked(arrays: Mapping[str, Array], name: str, length: int) -> Array:
    return checked(arrays, PREFIX + name, TYPES[name], (length,))
