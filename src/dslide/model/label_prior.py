"""Direct connections from features to labels, beside the hidden layers: what they add to logits (src/core/links.hpp
says what for), and how they are counted, kept and split over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.config import Config
from dslide.data import SparseRows
from dslide.errors import ModelError
from dslide.model.activations import Sparse
from dslide.model.sharding import Shard
from dslide.model.storage import Array, checked
from dslide.model.targets import Labels

Arrays = dict[str, Array]
Lengths = npt.NDArray[np.float64]

PREFIX = "prior."  # of the names of their arrays among those of a network


def has_label_prior(config: Config) -> bool:
    """Whether a network has links. They go with active sets that rows share, behind hidden layers that are dense."""
    return (
        config.prior_labels > 0 and config.active_sets == "shared" and all(share == 1 for share in config.hidden_share)
    )


TYPES: dict[str, np.dtype[Any]] = {
    "begin": np.dtype(np.int64),
    "neuron": np.dtype(np.int32),
    "weight": np.dtype(np.float32),
    "share": np.dtype(np.float32),
}


class LabelPrior:
    """The links to the labels of one shard.

    `begin` (features + 1), `neuron` (own number of the label) and `weight` are lists by feature; `share` (own labels)
    is what a row of length 1 adds to the weights of a label that it has. The arrays are not written to, and may be
    mapped from a file.
    """

    def __init__(self, begin: Array, neuron: Array, weight: Array, share: Array, scale: float) -> None:
        self.begin, self.neuron, self.weight, self.share = begin, neuron, weight, share
        self._native = _core.Links(begin, neuron, weight, share, scale)

    @classmethod
    def count(
        cls, x: SparseRows, y: SparseRows, features: int, labels: int, config: Config, shard: Shard, same: bool
    ) -> LabelPrior:
        """Counted from training data. `same`: features and labels are the same things, and nothing is linked to
        itself. Every rank counts all links and keeps its own."""
        begin, neuron, weight, share = _core.count_links(
            x.indptr,
            x.indices,
            x.values,
            features,
            y.indptr,
            y.indices,
            labels,
            config.prior_labels,
            config.prior_power,
            same,
            shard.rank,
            shard.size,
        )
        return cls(begin, neuron, weight, share, config.prior_scale)

    @classmethod
    def of_state(cls, arrays: Mapping[str, Array], features: int, neurons: int, scale: float) -> LabelPrior:
        """From the arrays of a saved network; ModelError if they are not what they should be."""
        begin = _checked(arrays, "begin", features + 1)
        links = max(0, int(begin[-1]))
        lists = (begin, _checked(arrays, "neuron", links), _checked(arrays, "weight", links))
        try:
            return cls(*lists, _checked(arrays, "share", neurons), scale)
        except ValueError as error:
            raise ModelError(f"the links of the network are damaged: {error}") from None

    def state(self) -> Arrays:
        """The arrays, by their names in a network."""
        return {PREFIX + name: getattr(self, name) for name in TYPES}

    def add(
        self, x: Sparse, lengths: Lengths, active: Any, own: Labels | None = None, keep: float = 1.0,
        boost: float = 1.0,
    ) -> None:  # fmt: skip
        """Sets what rows add to the logits of an active set. `lengths` are those that the rows had before dropout left
        out all but the share `keep`; `own` are labels that rows have in training, and must not know of; `boost` is a
        factor on all that is added."""
        own_offsets, own_ids = (None, None) if own is None else (own.offsets, own.ids)
        with np.errstate(divide="ignore"):  # a factor of 0: rows without end, whose values become 0
            lengths = lengths / boost
        self._native.add(x.offsets, x.ids, x.values, lengths, active, own_offsets, own_ids, keep)


def prior_arrays(arrays: Mapping[str, Array]) -> Arrays:
    """Those of a network's arrays that are of links; none if it has none."""
    return {name: arrays[name] for name in arrays if name.startswith(PREFIX)}


def row_lengths(x: Sparse) -> Lengths:
    """The Euclidean length of each row; 1 for one that has none."""
    lengths: Lengths = _core.row_lengths(x.offsets, x.values)
    return lengths


def regrouped(parts: Sequence[tuple[Shard, Mapping[str, Array]]], shard: Shard) -> Arrays:
    """The arrays of the links to a shard's labels, by their names in a network, out of those that other shards have:
    all that share labels with it."""
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
