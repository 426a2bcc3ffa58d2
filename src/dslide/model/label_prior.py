"""The label prior: what features score for labels directly, beside the hidden layers.

A sparse matrix of feature-label weights. It separates rare labels that a narrow hidden layer can't. Each weight has a
part that is counted from co-occurrences before training, times a scale that is learned, and a part that is trained.
src/core/layers/label_prior.hpp has the formulas. Each rank holds the weights of its own labels. Only the gradients of
the scales cross the network: a number for each of them.
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
from dslide.model import linear, neighbour_arrays
from dslide.model.linear import LinearClassifiers
from dslide.model.retriever import Hits
from dslide.model.sharding import Shard
from dslide.model.storage import ChangeListener, checked
from dslide.util.arrays import Array, Floats, padded
from dslide.util.csr import Csr, Lists, indptr_of

Arrays = dict[str, Array]
Lengths = npt.NDArray[np.float64]
ScaleGradient = npt.NDArray[np.float64]  # (SCALES)

PREFIX = "prior."  # of the names of its arrays among those of a network
LINEAR = "linear_"  # after that: of the names of the linear classifiers' arrays
NEIGHBOUR = "neighbour_"  # and of those of neighbours
TYPES: dict[str, np.dtype[Any]] = {
    "begin": np.dtype(np.int64),
    "neuron": np.dtype(np.int32),
    "weight": np.dtype(np.float32),
    "share": np.dtype(np.float32),
    "rows": np.dtype(np.int32),
    "trained": np.dtype(np.float32),
    "scale": np.dtype(np.float32),
    "scale_moment": np.dtype(np.float32),
    **{LINEAR + name: dtype for name, dtype in linear.TYPES.items()},
    **{NEIGHBOUR + name: dtype for name, dtype in neighbour_arrays.TYPES.items()},
}
SCALES: int = _core.LabelPrior.SCALES
SCALE_STEP = 0.1  # first step of a scale, as a share of what it begins with


def has_label_prior(config: Config) -> bool:
    """Whether a network has a label prior. It needs active sets that rows share and dense hidden layers."""
    dense = all(share == 1 for share in config.hidden_share)
    return config.prior_labels > 0 and config.active_sets == "shared" and dense


def has_trained_prior(config: Config) -> bool:
    """Whether a network has a label prior whose weights and scales are trained."""
    return has_label_prior(config) and config.prior_learning_rate > 0


class LabelPrior:
    """The prior of one shard's labels.

    `begin` (features + 1), `neuron` (own number of the label) and `weight` (the counted part) are lists by feature.
    `share` (own labels) is what a row of length 1 contributes to the weights of a label that it has; `rows` (own
    labels) how many rows have it. `trained` has the trained part of each weight; it is empty if the prior is not
    trained, and its scales are not learned either. `scale` has the factor on the counted part, by how many rows a label
    has, and `scale_moment` the sums of its squared gradients (Adagrad): the same on all ranks.

    `linear` are classifiers whose scores are added to the logits of the best labels in prediction. They belong to the
    weights for which they were trained: training removes them, and their arrays are empty then. So it does with the
    arrays of neighbours (neighbours.py), which are kept here as they are only used beside linear classifiers.
    """

    def __init__(self, arrays: Mapping[str, Array], is_trained: bool) -> None:
        """`arrays` by their names in `TYPES`. They may be mapped from a file unless the prior is trained further."""
        self.arrays, self.is_trained = dict(arrays), is_trained
        self.listener: ChangeListener | None = None
        self._native = _core.LabelPrior(
            arrays["begin"], arrays["neuron"], arrays["weight"], arrays["share"], arrays["rows"],
            arrays["trained"] if is_trained else None, arrays["scale"],
        )  # fmt: skip
        saved = {name: self.arrays[LINEAR + name] for name in linear.TYPES}
        self.linear = LinearClassifiers(saved, len(arrays["begin"]) - 1) if len(saved["begin"]) else None

    @classmethod
    def count(
        cls, x: SparseRows, y: SparseRows, features: int, labels: int, config: Config, shard: Shard, same: bool
    ) -> LabelPrior:
        """Counts co-occurrences in training data. `same`: features and labels are the same items, and none scores
        itself. Every rank counts all and keeps its own."""
        begin, neuron, weight, share, rows = _core.count_label_prior(
            x.indptr, x.indices, x.values, features, y.indptr, y.indices, labels, config.prior_labels,
            config.prior_power, config.prior_learning_rate > 0, same, shard.stripe,
        )  # fmt: skip
        return cls.untrained(begin, neuron, weight, share, rows, config)

    @classmethod
    def untrained(
        cls, begin: Array, neuron: Array, weight: Array, share: Array, rows: Array, config: Config
    ) -> LabelPrior:
        """A prior whose training begins, if the options say that it is trained."""
        is_trained = config.prior_learning_rate > 0
        arrays = {
            "begin": begin, "neuron": neuron, "weight": weight, "share": share, "rows": rows,
            "trained": np.zeros(len(weight) if is_trained else 0, np.float32),
            "scale": np.full(SCALES, config.prior_scale, np.float32),
            "scale_moment": np.zeros(SCALES, np.float32), **_named(linear.NONE), **no_neighbours(),
        }  # fmt: skip
        return cls(arrays, is_trained)

    @classmethod
    def of_state(cls, arrays: Mapping[str, Array], features: int, neurons: int, config: Config) -> LabelPrior:
        """From the arrays of a saved network; ModelError if they are damaged."""
        begin = _checked(arrays, "begin", features + 1)
        size = max(0, int(begin[-1]))
        is_trained = config.prior_learning_rate > 0
        has_linear = arrays[PREFIX + LINEAR + "begin"].size > 0 if PREFIX + LINEAR + "begin" in arrays else False
        linear_begin = _checked(arrays, LINEAR + "begin", neurons + 1 if has_linear else 0)
        near = {name: _of_any_size(arrays, NEIGHBOUR + name) for name in neighbour_arrays.TYPES}
        stride = padded(config.hidden[-1]) if config.hidden else 0
        lengths = {
            "begin": features + 1, "neuron": size, "weight": size, "share": neurons, "rows": neurons,
            "trained": size if is_trained else 0, "scale": SCALES, "scale_moment": SCALES,
            **_named(linear.sizes(linear_begin, neurons)),
            **{NEIGHBOUR + name: size for name, size in neighbour_arrays.sizes(near, stride).items()},
        }  # fmt: skip
        found = {name: _checked(arrays, name, length) for name, length in lengths.items()}
        try:
            return cls(found, is_trained)
        except ValueError as error:
            raise ModelError(f"the label prior of the network is damaged: {error}") from None

    def state(self) -> Arrays:
        """The arrays, by their names in a network."""
        return {PREFIX + name: self.arrays[name] for name in TYPES}

    def set_linear(self, classifiers: LinearClassifiers | None) -> None:
        """Sets the linear classifiers that count in prediction, or removes them."""
        if classifiers is not self.linear:
            self.linear = classifiers
            self.arrays |= _named(linear.NONE if classifiers is None else classifiers.arrays)

    def set_neighbours(self, arrays: Mapping[str, Array]) -> None:
        """Sets the arrays of neighbours, by their names there."""
        self.arrays |= {NEIGHBOUR + name: array for name, array in arrays.items()}

    @property
    def neighbours(self) -> Arrays | None:
        """The arrays of neighbours; None if there are none."""
        if self.arrays[NEIGHBOUR + "begin"].size == 0:
            return None
        return {name: self.arrays[NEIGHBOUR + name] for name in neighbour_arrays.TYPES}

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
        groups = None if active.is_everything else x.by_column
        self._native.add(x.indptr, x.indices, x.values, lengths, active, own_indptr, own_indices, keep, groups)

    def arguments(self, x: Csr, boost: float) -> dict[str, Any]:
        """Those of native functions that add it, times a factor, to the logits of rows in prediction."""
        with np.errstate(divide="ignore"):
            norms = row_lengths(x) / boost
        return {"prior": self._native, "x_offsets": x.indptr, "x_ids": x.indices, "x_values": x.values, "norms": norms}

    def logits(self, x: Csr, boost: float) -> _core.PriorLogits:
        """What it adds to the logits of all own neurons for each row, times a factor, in prediction."""
        with np.errstate(divide="ignore"):
            lengths = row_lengths(x) / boost
        return self._native.logits(x.indptr, x.indices, x.values, lengths)

    def look_up(
        self, x: Csr, lengths: Lengths, own: Lists, bias: Floats, want: int, shard: Shard,
        groups: _core.GroupedInputs | None = None,
    ) -> Hits:  # fmt: skip
        """The `want` own labels with the largest prior plus bias for each row, except those that it has: the labels
        that are most easily mistaken for its own. `groups`: those of a batch; many rows are grouped part by part."""
        best, keys = np.empty((x.rows, want), np.int32), np.empty((x.rows, want), np.uint32)
        self._native.best(
            x.indptr,
            x.indices,
            x.values,
            lengths,
            own.indptr,
            own.indices,
            bias,
            shard.stripe,
            best,
            keys,
            groups,
        )
        found = best >= 0
        return Hits(Lists(indptr_of(found.sum(axis=1)), best[found]), keys[found])

    def learn(self, x: Csr, lengths: Lengths, active: ActiveSet, rate: float) -> ScaleGradient:
        """Steps the trained weights along the gradients of the active set's logits; returns this rank's part of the
        gradient of the scales. `rate`: step size for the gradient of one row."""
        if self.listener is not None and PREFIX + "trained" in self.listener:
            begin, features = self.arrays["begin"], np.unique(x.indices)
            first, counts = begin[features], begin[features + 1] - begin[features]
            links = np.arange(counts.sum()) + np.repeat(first - indptr_of(counts)[:-1], counts)
            self.listener.before_change(PREFIX + "trained", links)
        gradient: ScaleGradient = np.zeros(SCALES)
        self._native.learn(x.indptr, x.indices, x.values, lengths, active, rate * x.rows, gradient, x.by_column)
        return gradient

    def step_scales(self, gradient: ScaleGradient, rate: float) -> None:
        """Steps the scales along their gradient, summed over ranks (Adagrad). `rate`: size of the first step."""
        for name in ("scale", "scale_moment"):
            if self.listener is not None and PREFIX + name in self.listener:
                self.listener.before_change(PREFIX + name)
        scale, moment = self.arrays["scale"], self.arrays["scale_moment"]
        moment += gradient**2
        used = moment > 0
        scale[used] -= rate * gradient[used] / np.sqrt(moment[used])
        np.maximum(scale, 0, out=scale)  # co-occurrence never speaks against a label


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
    by_link: dict[str, list[Array]] = {name: [] for name in ("feature", "label", "weight", "trained")}
    by_label: dict[str, list[Array]] = {name: [] for name in ("number", "share", "rows")}
    for writer, arrays in parts:
        begin, neuron = arrays[PREFIX + "begin"], arrays[PREFIX + "neuron"]
        labels = writer.to_global(neuron.astype(np.int64))
        kept = shard.owns(labels)
        by_link["feature"].append(np.repeat(np.arange(features), np.diff(begin))[kept])
        by_link["label"].append(shard.to_local(labels[kept]))
        by_link["weight"].append(arrays[PREFIX + "weight"][kept])
        trained = arrays[PREFIX + "trained"]
        by_link["trained"].append(trained[kept] if len(trained) else trained)
        every = writer.numbers(len(arrays[PREFIX + "share"]))
        mine = shard.owns(every)
        by_label["number"].append(every[mine])
        for name in ("share", "rows"):
            by_label[name].append(arrays[PREFIX + name][mine])
    link = {name: np.concatenate(pieces) for name, pieces in by_link.items()}
    label = {name: np.concatenate(pieces) for name, pieces in by_label.items()}
    order, label_order = np.lexsort((link["label"], link["feature"])), np.argsort(label["number"])
    made = {
        "begin": np.searchsorted(link["feature"][order], np.arange(features + 1)),
        "neuron": link["label"][order],
        "weight": link["weight"][order],
        "share": label["share"][label_order],
        "rows": label["rows"][label_order],
        "trained": link["trained"][order] if len(link["trained"]) else link["trained"],
        "scale": parts[0][1][PREFIX + "scale"],
        "scale_moment": parts[0][1][PREFIX + "scale_moment"],
    }
    parts_of_linear = [
        (writer, {name: arrays[PREFIX + LINEAR + name] for name in linear.TYPES}) for writer, arrays in parts
    ]
    made |= _named(linear.regrouped(parts_of_linear, shard))
    made |= {NEIGHBOUR + name: parts[0][1][PREFIX + NEIGHBOUR + name] for name in neighbour_arrays.TYPES}
    return {PREFIX + name: made[name].astype(dtype) for name, dtype in TYPES.items()}


def no_neighbours() -> Arrays:
    """The arrays of a prior without neighbours, by their names in it."""
    return {NEIGHBOUR + name: array for name, array in neighbour_arrays.NONE.items()}


def _named(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to the linear classifiers' arrays, by their names among the prior's."""
    return {LINEAR + name: value for name, value in arrays.items()}


def _checked(arrays: Mapping[str, Array], name: str, length: int) -> Array:
    return checked(arrays, PREFIX + name, TYPES[name], (length,))


def _of_any_size(arrays: Mapping[str, Array], name: str) -> Array:
    """An array of the prior, whatever its length."""
    length = arrays[PREFIX + name].size if PREFIX + name in arrays else 0
    return _checked(arrays, name, length)
