"""Linear classifiers of the labels: a support-vector machine for each label, on the features themselves.

They are trained at the end of training, apart from the network (training/linear.py). In prediction, the labels that the
network ranks highest are ranked again with the classifiers' scores added to their logits. The network shares what it
learns between labels; the classifiers separate each label from those that rows are mistaken for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dslide import _core
from dslide.model.calibration import Calibration
from dslide.model.collectives import Collectives
from dslide.model.sharding import Shard
from dslide.util.arrays import Array, Floats, Ids
from dslide.util.csr import Csr, indptr_of

Arrays = dict[str, Array]

TYPES: dict[str, np.dtype[Any]] = {
    "begin": np.dtype(np.int64),
    "feature": np.dtype(np.int32),
    "weight": np.dtype(np.float32),
    "bias": np.dtype(np.float32),
    "factor": np.dtype(np.float32),
}
NONE: Arrays = {name: np.zeros(0, dtype) for name, dtype in TYPES.items()}  # the arrays if there are no classifiers


class LinearClassifiers:
    """The classifiers of one shard's labels: `begin` (labels + 1), `feature` and `weight` are lists by label, `bias`
    (labels). A row that is scaled to length 1 has the score of its weights plus bias: about 1 for a label that it has,
    and -1 for one that it has not, times the label's `factor` (labels), which weights and bias include."""

    def __init__(self, arrays: Mapping[str, Array], features: int) -> None:
        """`arrays` by their names in `TYPES`. They may be mapped from a file."""
        self.arrays, self._features = dict(arrays), features
        self._native = _core.LinearClassifiers(
            arrays["begin"], arrays["feature"], arrays["weight"], arrays["bias"], features
        )

    @classmethod
    def of_parts(cls, parts: Sequence[Sequence[Array]], features: int) -> LinearClassifiers:
        """From those of consecutive labels."""
        begins, *others = zip(*parts, strict=True)
        begin = indptr_of(np.concatenate([np.diff(each) for each in begins]))
        names = ("feature", "weight", "bias")
        whole = {name: np.concatenate(pieces) for name, pieces in zip(names, others, strict=True)}
        return cls({"begin": begin} | whole | {"factor": np.ones(len(begin) - 1, np.float32)}, features)

    def times(self, factors: npt.NDArray[np.floating]) -> LinearClassifiers:
        """Those with the scores of each label times a factor."""
        factors = factors.astype(np.float32)
        of_weights = np.repeat(factors, np.diff(self.arrays["begin"]))
        changed = {name: self.arrays[name] * factors for name in ("bias", "factor")}
        return LinearClassifiers(self.arrays | changed | {"weight": self.arrays["weight"] * of_weights}, self._features)

    def without_factors(self) -> LinearClassifiers:
        """Those with scores of about 1 and -1."""
        factor = self.arrays["factor"]
        return self.times(np.divide(1, factor, out=np.ones(len(factor)), where=factor > 0))

    def with_others(self, others: LinearClassifiers, which: npt.NDArray[np.bool_]) -> LinearClassifiers:
        """These, but for some labels the others."""
        mine, theirs = np.diff(self.arrays["begin"]), np.diff(others.arrays["begin"])
        lengths = np.where(which, theirs, mine)
        is_theirs, made = np.repeat(which, lengths), {"begin": indptr_of(lengths)}
        for name in ("feature", "weight"):
            values = made[name] = np.empty(len(is_theirs), TYPES[name])
            values[~is_theirs] = self.arrays[name][np.repeat(~which, mine)]
            values[is_theirs] = others.arrays[name][np.repeat(which, theirs)]
        made |= {name: np.where(which, others.arrays[name], self.arrays[name]) for name in ("bias", "factor")}
        return LinearClassifiers(made, self._features)

    def scores(self, x: Csr, labels: Ids) -> Floats:
        """Of some labels of each row, (rows, n), by own number; 0 for label -1."""
        found = np.empty(labels.shape, np.float32)
        lengths = _core.row_norms(x.indptr, x.values)
        self._native.scores(x.indptr, x.indices, x.values, lengths, np.ascontiguousarray(labels), found)
        return found

    def ranked_again(
        self, x: Csr, ids: Ids, logits: Floats, k: int, most: int, calibration: Calibration, collectives: Collectives
    ) -> tuple[Ids, Floats]:
        """The k best of some candidates, by their logits and the classifiers' scores: ids in the whole layer, -1 for
        none, and logits, best first. Those after the first `most` keep their order and come last."""
        shard, scores = collectives.shard, np.empty_like(logits)
        self._native.mixed_scores(
            x.indptr, x.indices, x.values, _core.row_norms(x.indptr, x.values), ids, logits, scores,
            *calibration.native, shard.stripe,
        )  # fmt: skip
        if shard.size > 1:
            sums = collectives.summary(0.0, 0.0, True, more=scores.ravel().astype(np.float64)).wait().sums
            scores = sums.reshape(scores.shape).astype(np.float32)
        best = np.empty((len(ids), k), np.int32), np.empty((len(ids), k), np.float32)
        _core.rank_again(ids, scores, most, *best)
        return best


def sizes(begin: Array, labels: int) -> dict[str, int]:
    """The lengths that the arrays of a shard's labels must have, by where their lists begin; all 0 without any."""
    if len(begin) == 0:
        return dict.fromkeys(TYPES, 0)
    size = max(0, int(begin[-1]))
    return {"begin": labels + 1, "feature": size, "weight": size, "bias": labels, "factor": labels}


def regrouped(parts: Sequence[tuple[Shard, Mapping[str, Array]]], shard: Shard) -> Arrays:
    """Reshards: the arrays of one shard, from those of all shards that have labels in common with it."""
    if not len(parts[0][1]["begin"]):
        return NONE
    matrices, numbers = [], []
    by_label: dict[str, list[Array]] = {"bias": [], "factor": []}
    for writer, arrays in parts:
        labels = writer.numbers(len(arrays["bias"]))
        mine = shard.owns(labels)
        columns = int(arrays["feature"].max(initial=0)) + 1
        matrix = sp.csr_matrix((arrays["weight"], arrays["feature"], arrays["begin"]), (len(labels), columns))
        matrices.append(matrix[mine])
        numbers.append(labels[mine])
        for name, pieces in by_label.items():
            pieces.append(arrays[name][mine])
    columns = max(matrix.shape[1] for matrix in matrices)
    for matrix in matrices:
        matrix.resize(matrix.shape[0], columns)
    order = np.argsort(np.concatenate(numbers))
    whole = sp.vstack(matrices, format="csr")[order]
    made = {"begin": whole.indptr, "feature": whole.indices, "weight": whole.data}
    return made | {name: np.concatenate(pieces)[order] for name, pieces in by_label.items()}


def with_more(arrays: Mapping[str, Array], labels: int, usual: Mapping[str, float]) -> Arrays:
    """The arrays with more labels, without weights: the same score for every row, of the `usual` bias and factor."""
    more = labels - len(arrays["bias"])
    made = {**arrays, "begin": np.append(arrays["begin"], np.full(more, arrays["begin"][-1]))}
    for name in ("bias", "factor"):
        made[name] = np.append(arrays[name], np.full(more, usual[name], np.float32)).astype(np.float32)
    return made


def only_rows(arrays: Mapping[str, Array], kept: npt.NDArray[np.integer]) -> Arrays:
    """The arrays of some of the labels, numbered anew."""
    if len(arrays["begin"]) == 0:
        return NONE
    columns = int(arrays["feature"].max(initial=0)) + 1
    matrix = sp.csr_matrix((arrays["weight"], arrays["feature"], arrays["begin"]), (len(arrays["bias"]), columns))[kept]
    made = {"begin": matrix.indptr, "feature": matrix.indices, "weight": matrix.data}
    made |= {name: arrays[name][kept] for name in ("bias", "factor")}
    return {name: made[name].astype(dtype) for name, dtype in TYPES.items()}


def only_labels(arrays: Mapping[str, Array], shard: Shard, writer: Shard) -> Arrays:
    """A writer's arrays without weights of other labels than a shard's; labels keep the writer's numbers."""
    begin = arrays["begin"]
    if len(begin) == 0:
        return NONE
    kept = shard.owns(writer.numbers(len(begin) - 1))
    lengths = np.diff(begin)
    weights = np.repeat(kept, lengths)
    changed = {"begin": indptr_of(lengths * kept)}
    return {**arrays, **changed, "feature": arrays["feature"][weights], "weight": arrays["weight"][weights]}
