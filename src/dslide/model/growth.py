"""Growth: a network takes over what a smaller one has learned, one with fewer features or labels.

Features and labels are appended, and a rank owns every R-th neuron, so that each rank's old neurons keep their places
and ranks stay balanced. Weights, the optimizer's state and the label prior of old ones are kept. New features and
labels begin as those of an untrained network do. All neurons are hashed again: there may be more tables now.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.comm import Communicator
from dslide.config import Config
from dslide.data import SparseRows
from dslide.model import linear
from dslide.model.collectives import Collectives
from dslide.model.label_prior import LINEAR, NEIGHBOUR, PREFIX, LabelPrior, no_neighbours, row_lengths
from dslide.model.sharding import Shard
from dslide.util.arrays import Array
from dslide.util.csr import indptr_of

Keys = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

BLOCK = 1 << 20  # links that are put together at once, which bounds memory


def count_bytes(rows: int, features_per_row: float, labels_per_row: float) -> int:
    """The memory of `with_counts`: links of the new rows, and what it works on."""
    return round(12 * rows * features_per_row * labels_per_row) + 100 * BLOCK


def larger_prior(
    arrays: Mapping[str, Array], features: int, neurons: int, collectives: Collectives
) -> dict[str, Array]:
    """A label prior's arrays, by their names in a network, with more features and own labels, which have no links yet.
    The linear classifiers of these say nothing of any feature, and no more or less than those of all ranks' labels do
    on average. Neighbours are left out, whose hidden vectors will change. Ranks call it together."""
    made = {name: np.array(array) for name, array in arrays.items() if not name.startswith(PREFIX + NEIGHBOUR)}
    made |= {PREFIX + name: array for name, array in no_neighbours().items()}
    begin = made[PREFIX + "begin"]
    made[PREFIX + "begin"] = np.concatenate([begin, np.full(features + 1 - len(begin), begin[-1])])
    for name in ("share", "rows"):
        array = made[PREFIX + name]
        made[PREFIX + name] = np.concatenate([array, np.zeros(neurons - len(array), array.dtype)])
    saved = {name: made[PREFIX + LINEAR + name] for name in linear.TYPES}
    own = np.array([saved["bias"].sum(), saved["factor"].sum(), len(saved["bias"])], np.float64)
    bias, factor, labels = collectives.summary(0.0, 0.0, True, more=own).wait().sums
    if len(saved["begin"]):
        saved = linear.with_more(saved, neurons, {"bias": bias / max(labels, 1), "factor": factor / max(labels, 1)})
    return made | {PREFIX + LINEAR + name: array for name, array in saved.items()}


def with_counts(
    prior: LabelPrior, x: SparseRows, y: SparseRows, labels: int, rows: int, config: Config, comm: Communicator
) -> LabelPrior:
    """The label prior with further rows counted; `rows` are all that were counted so far and now. A label's centroid is
    that of all its rows, as far as its links tell. Each feature keeps `prior_labels` links; trained weights and scales
    stay. Ranks call it together, with the same rows."""
    features, shard = len(prior.arrays["begin"]) - 1, Shard.of(comm)
    begin, neuron, weight, share, own_rows = _core.count_label_prior(
        x.indptr, x.indices, x.values, features, y.indptr, y.indices, labels, labels, config.prior_power, False, False,
        shard.stripe,
    )  # fmt: skip
    old = prior.arrays
    trained = old["trained"] if prior.is_trained else np.zeros(len(old["neuron"]), np.float32)
    before = _Links(old["begin"], old["neuron"], old["weight"], old["share"], trained)
    new = _Links(begin, neuron, weight, share, np.zeros(len(neuron), np.float32))
    bounds = _blocks(before.begin + new.begin, comm)
    overlap = sum(_overlap(before.part(*block), new.part(*block)) for block in itertools.pairwise(bounds))
    power, counts = config.prior_power, old["rows"] + own_rows
    square = _lengths(old["share"], power) ** 2 + 2 * overlap + _lengths(share, power) ** 2
    shares = np.power(square, -power / 2, out=np.zeros(len(square)), where=square > 0)
    seen = _Seen.of(x, features, rows)
    chosen = []
    for block in itertools.pairwise(bounds):
        feature, neuron, total, trained = _together(before.part(*block), new.part(*block))
        weights = total * shares[neuron]
        gain = seen.gains(feature + block[0], total, counts[neuron]) if prior.is_trained else weights
        label = shard.to_global(neuron.astype(np.int64))
        kept = _best_of_each(feature, gain, label, block[1] - block[0], config.prior_labels, comm)
        lengths = np.bincount(feature[kept], minlength=block[1] - block[0])
        chosen.append((lengths, neuron[kept], weights[kept].astype(np.float32), trained[kept]))
    lengths, neuron, weight, trained = (np.concatenate(pieces) for pieces in zip(*chosen, strict=True))
    arrays = {
        **old, "begin": indptr_of(lengths), "neuron": neuron, "weight": weight, "share": shares.astype(np.float32),
        "rows": counts.astype(np.int32), "trained": trained if prior.is_trained else old["trained"],
    }  # fmt: skip
    return LabelPrior(arrays, prior.is_trained)


@dataclass(frozen=True)
class _Links:
    """Links by feature, with neurons in ascending order; `share` by neuron, as in a label prior."""

    begin: Array
    neuron: Array
    weight: Array
    share: Array
    trained: Array

    def part(self, first: int, end: int) -> _Links:
        """Those of features `first` to `end`."""
        at = slice(self.begin[first], self.begin[end])
        begin = self.begin[first : end + 1] - self.begin[first]
        return _Links(begin, self.neuron[at], self.weight[at], self.share, self.trained[at])

    @property
    def keys(self) -> Keys:
        """Links as ascending numbers."""
        return np.repeat(np.arange(len(self.begin) - 1) * len(self.share), np.diff(self.begin)) + self.neuron

    @property
    def sums(self) -> Numbers:
        """The values of each link's feature, summed over the label's rows."""
        share = self.share[self.neuron]
        return np.divide(self.weight, share, out=np.zeros(len(share)), where=share > 0)


@dataclass(frozen=True)
class _Seen:
    """What new rows say of features: in how many they are, and their mean value there. `rows` are all, new and earlier
    ones, `times` as many as the new ones."""

    rows: int
    found: Keys
    mean: Numbers
    times: float

    @classmethod
    def of(cls, x: SparseRows, features: int, rows: int) -> _Seen:
        values = x.values / np.repeat(row_lengths(x), np.diff(x.indptr))
        found = np.maximum(np.bincount(x.indices, minlength=features), 1)
        return cls(rows, found, np.bincount(x.indices, values, features) / found, max(1.0, rows / max(len(x), 1)))

    def gains(self, feature: Keys, total: Numbers, label_rows: Array) -> Numbers:
        """About how much each link tells: n log(n N / (f l)), as label_prior.hpp has it. Of all N rows as large a share
        is taken to have the feature as of the new ones, with the same values."""
        mean, frequent = self.mean[feature], self.found[feature] * self.times
        both = np.divide(total, mean, out=np.zeros(len(total)), where=mean > 0)
        ratio = both * self.rows / (frequent * np.maximum(label_rows, 1))
        return np.asarray(both * np.log(np.maximum(ratio, 1e-9)))


def _blocks(begin: Array, comm: Communicator) -> list[int]:
    """Bounds of blocks of features that have about `BLOCK` links each, the same on all ranks."""
    at = np.searchsorted(begin, np.arange(BLOCK, max(int(begin[-1]), 1), BLOCK))
    own = [0, *np.unique(at[(at > 0) & (at < len(begin) - 1)]).tolist(), len(begin) - 1]
    return list(comm.gather_objects("blocks of features", own)[0])


def _overlap(before: _Links, new: _Links) -> Numbers:
    """By neuron, the inner product of a label's earlier sum of rows with its new one."""
    keys, wanted = np.append(before.keys, -1), new.keys
    at = np.searchsorted(keys[:-1], wanted)
    found = keys[at] == wanted
    products = np.append(before.sums, 0)[at] * new.sums * found
    return np.asarray(np.bincount(new.neuron, products, len(new.share)), np.float64)


def _together(before: _Links, new: _Links) -> tuple[Keys, Array, Numbers, Array]:
    """All links of both: features, neurons, sums, trained weights."""
    keys, wanted = before.keys, new.keys
    at = np.searchsorted(keys, wanted)
    missing = np.append(keys, -1)[at] != wanted
    every = np.insert(keys, at[missing], wanted[missing])
    total, trained = np.zeros(len(every)), np.zeros(len(every), np.float32)
    own = np.searchsorted(every, keys)
    total[own], trained[own] = before.sums, before.trained
    total[np.searchsorted(every, wanted)] += new.sums
    feature, neuron = np.divmod(every, len(new.share))
    return feature, neuron.astype(np.int32), total, trained


def _lengths(share: Array, power: float) -> Numbers:
    """The lengths of labels' sums of rows, from their shares; labels without rows have 0."""
    if power == 0:
        return (share > 0).astype(np.float64)
    return np.power(share, -1 / power, out=np.zeros(len(share)), where=share > 0, dtype=np.float64)


def _best_of_each(
    feature: Keys, gain: Numbers, label: Keys, features: int, most: int, comm: Communicator
) -> npt.NDArray[np.bool_]:
    """Which links are among the `most` of their feature with the largest gain, on all ranks together; ties to the lower
    label. Ranks exchange what is known of the links of features that have more."""
    counts = np.bincount(feature, minlength=features).astype(np.int64)
    of_all = comm.all_gather("links of features", counts.tobytes())
    full = np.sum([np.frombuffer(each, np.int64) for each in of_all], axis=0) > most
    mine = np.flatnonzero(full[feature])
    records = np.empty(len(mine), [("feature", np.int64), ("loss", np.float64), ("label", np.int64)])
    records["feature"], records["loss"], records["label"] = feature[mine], -gain[mine], label[mine]
    parts = [np.frombuffer(each, records.dtype) for each in comm.all_gather("links to choose from", records.tobytes())]
    every = np.concatenate(parts)
    by_feature = np.argsort(every["feature"], kind="stable")
    chosen = np.zeros(len(every), np.bool_)
    for links in np.split(by_feature, np.flatnonzero(np.diff(every["feature"][by_feature])) + 1):
        loss = every["loss"][links]
        best = links[loss <= np.partition(loss, most - 1)[most - 1]] if len(links) > most else links
        chosen[best[np.lexsort((every["label"][best], every["loss"][best]))[:most]]] = True
    first = sum(map(len, parts[: comm.rank]))
    kept = np.ones(len(feature), np.bool_)
    kept[mine] = chosen[first : first + len(mine)]
    return kept
