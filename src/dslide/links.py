"""Direct connections from features to labels, beside the hidden layers: what they add to logits (src/core/links.hpp
says what for), and how they are counted, kept and split over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from .activations import Floats, Sparse
from .config import Config
from .data import SparseRows
from .errors import ModelError
from .labels import Labels
from .shard import Shard

Arrays = dict[str, npt.NDArray[Any]]

PREFIX = "links."  # of the names of their arrays among those of a network


def wanted(config: Config) -> bool:
    """Whether a network has links. They go with active sets that rows share, behind hidden layers that are dense."""
    return config.links > 0 and config.active_sets == "shared" and all(share == 1 for share in config.hidden_share)


class Links:
    """The links to the labels of one shard.

    `begin` (features + 1), `neuron` (own number of the label) and `weight` are lists by feature; `share` (own labels) is
    what a row of length 1 adds to the weights of a label that it has.
    """

    def __init__(self, begin: Any, neuron: Any, weight: Any, share: Any, scale: float) -> None:
        self.begin, self.neuron, self.weight, self.share = begin, neuron, weight, share
        self._native = _core.Links(begin, neuron, weight, share, scale)

    @classmethod
    def count(
        cls, x: SparseRows, y: SparseRows, features: int, labels: int, config: Config, shard: Shard, same: bool
    ) -> Links:
        """Counted from training data. `same`: features and labels are the same things, and nothing is linked to
        itself. Every rank counts all links and keeps its own."""
        rows = Sparse(x.indptr - x.indptr[0], x.indices, x.values)
        counted = _core.count_links(
            rows.offsets, rows.ids, scaled(rows, row_lengths(rows)), features, y.indptr - y.indptr[0], y.indices,
            labels, config.links, config.link_power, same,
        )  # fmt: skip
        whole = dict(zip(("begin", "neuron", "weight", "share"), counted, strict=True))
        return cls(**_of_shard([(Shard(), whole)], shard), scale=config.link_scale)

    @classmethod
    def of_state(cls, arrays: Mapping[str, npt.NDArray[Any]], features: int, neurons: int, scale: float) -> Links:
        """From the arrays of a saved network; ModelError if they are not what they should be."""
        given = {name: arrays[PREFIX + name] for name in TYPES if PREFIX + name in arrays}
        try:
            if [given[name].dtype for name in TYPES] != list(TYPES.values()):
                raise ValueError("other types of numbers than expected")
            if given["begin"].shape != (features + 1,) or given["share"].shape != (neurons,):
                raise ValueError("other sizes than expected")
            return cls(**given, scale=scale)
        except (KeyError, ValueError, TypeError) as error:
            raise ModelError(f"the links of the network are damaged: {error}") from None

    def state(self) -> Arrays:
        """The arrays, by their names in a network."""
        return {PREFIX + name: getattr(self, name) for name in TYPES}

    def add(
        self, x: Sparse, lengths: Floats, active: Any, own: Labels | None = None, keep: float = 1.0,
        boost: float = 1.0,
    ) -> None:  # fmt: skip
        """Sets what rows add to the logits of an active set. `lengths` are those that the rows had before dropout left
        out all but the share `keep`; `own` are labels that rows have in training, and must not know of; `boost` is a
        factor on all that is added."""
        targets = (None, None) if own is None else (own.offsets, own.ids)
        self._native.add(x.offsets, x.ids, scaled(x, lengths / boost), active, *targets, keep)


TYPES = {
    "begin": np.dtype(np.int64),
    "neuron": np.dtype(np.int32),
    "weight": np.dtype(np.float32),
    "share": np.dtype(np.float32),
}


def regrouped(parts: Sequence[tuple[Shard, Mapping[str, npt.NDArray[Any]]]], shard: Shard) -> Arrays:
    """A shard's arrays, by their names in a network, out of those that others wrote."""
    bare = [(writer, {name: arrays[PREFIX + name] for name in TYPES}) for writer, arrays in parts]
    return {PREFIX + name: array for name, array in _of_shard(bare, shard).items()}


def _of_shard(parts: Sequence[tuple[Shard, Mapping[str, npt.NDArray[Any]]]], shard: Shard) -> Arrays:
    """The links to a shard's labels, out of those to the labels of others."""
    features = len(parts[0][1]["begin"]) - 1
    feature, label, weight, pairs = [], [], [], []
    for writer, arrays in parts:
        whole = arrays["neuron"].astype(np.int64) * writer.size + writer.rank
        kept = whole % shard.size == shard.rank
        feature.append(np.repeat(np.arange(features), np.diff(arrays["begin"]))[kept])
        label.append(whole[kept])
        weight.append(arrays["weight"][kept])
        number = np.arange(len(arrays["share"])) * writer.size + writer.rank
        mine = number % shard.size == shard.rank
        pairs.append((number[mine], arrays["share"][mine]))
    features_of, labels_of = np.concatenate(feature), np.concatenate(label)
    order = np.lexsort((labels_of, features_of))
    numbers = np.concatenate([number for number, _ in pairs])
    share = np.concatenate([values for _, values in pairs])[np.argsort(numbers)]
    counts = np.bincount(features_of, minlength=features)
    return {
        "begin": np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]),
        "neuron": (labels_of[order] // shard.size).astype(np.int32),
        "weight": np.concatenate(weight)[order],
        "share": share,
    }


def row_lengths(x: Sparse) -> Floats:
    """The Euclidean length of each row; 1 for one without elements."""
    rows = np.repeat(np.arange(x.rows), np.diff(x.offsets))
    squares = np.bincount(rows, x.values.astype(np.float64) ** 2, x.rows)
    return np.sqrt(np.where(squares > 0, squares, 1)).astype(np.float32)


def scaled(x: Sparse, lengths: Floats) -> Floats:
    """The rows' values, divided by lengths."""
    return np.asarray(x.values / np.repeat(lengths, np.diff(x.offsets)), np.float32)
