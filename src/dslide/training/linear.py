"""Trains linear classifiers (model/linear.py), after the network. A label's classifier is trained on its rows, against
rows for which the label prior ranks the label high, and against a sample of all others. Every rank trains those of its
own labels; ranks exchange only how high the prior ranks labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dslide import _core
from dslide.data import SparseRows
from dslide.model.label_prior import row_lengths
from dslide.model.linear import LinearClassifiers
from dslide.model.network import Network
from dslide.util.csr import Lists

COSTS = (0.1, 0.3, 1.0)  # of an error, beside half the squared length of the weights: those that are tried
MIDDLE_COST = COSTS[1]
LEAST = 0.02  # weights of a smaller size are left out
WEIGHTS_PER_ROW = 16  # weights that are kept for each training row of a label, at most
# A label is trained against at most so many rows for each of its own, and so many at least. Most rows that are mistaken
# for something are mistaken for a frequent label, which would take most of the time.
NEGATIVES_PER_ROW, LEAST_NEGATIVES = 50, 100
OTHERS = 100  # rows sampled from all others that it is trained against, too
LOOK_UP_ROWS = 4096  # rows whose negatives are looked up at once
LABELS = 16384  # trained in one call; between calls an interrupt is noticed


@dataclass(frozen=True)
class Examples:
    """The rows that each own label is trained on."""

    x: SparseRows
    positive: Lists  # by label: rows that have it
    negative: Lists  # by label: rows that are mistaken for such rows

    @classmethod
    def find(cls, network: Network, x: SparseRows, y: SparseRows) -> Examples:
        """Finds them among the training rows. All ranks call it together; the network needs a label prior."""
        own, labels = network.shard.own_part(y), network.output.neurons
        return cls(x, _by_label(own, labels), _by_label(_negatives(network, x, own), labels))

    def of_labels(self, which: npt.NDArray[np.bool_]) -> Examples:
        """Those of some own labels only."""
        lists = (each.where(which[each.row_numbers()]) for each in (self.positive, self.negative))
        return Examples(self.x, *lists)


def train_linear(network: Network, examples: Examples, only: float = 0.0) -> dict[float, LinearClassifiers]:
    """Trains the classifiers of own labels, at each cost that is tried, or for `only` one of them. One cost begins with
    the weights of the cost before, without which it does not get as far."""
    found = only in COSTS
    costs = COSTS[: COSTS.index(only) + 1] if found else COSTS
    x, lengths, parts = examples.x, row_lengths(examples.x), []
    numbers = network.shard.to_global(np.arange(network.output.neurons, dtype=np.int32))
    for begin in range(0, len(numbers), LABELS):
        end = min(begin + LABELS, len(numbers))
        positive, negative = examples.positive.part(begin, end), examples.negative.part(begin, end)
        parts.append(
            _core.train_linear(
                x.indptr, x.indices, x.values, lengths, network.features, positive.indptr, positive.indices,
                negative.indptr, negative.indices, numbers[begin:end], np.array(costs, np.float32),
                least=LEAST, weights_per_row=WEIGHTS_PER_ROW, negatives_per_row=NEGATIVES_PER_ROW,
                least_negatives=LEAST_NEGATIVES, others=OTHERS,
            )
        )  # fmt: skip
    made = {}
    for cost in costs:
        pieces = [part.pop(0) for part in parts]  # which are freed once they are put together
        if not found or cost == only:
            made[cost] = LinearClassifiers.of_parts(pieces, network.features)
        del pieces
    return made


@dataclass(frozen=True)
class Trials:
    """Classifiers at each cost that is tried. To compare costs those of labels that held-out rows may get are enough;
    the others are left out until one cost is chosen."""

    by_cost: dict[float, LinearClassifiers]
    rest: Callable[[float], LinearClassifiers] | None = None  # of a cost, and only of labels that were left out
    left_out: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))  # (own labels)

    @classmethod
    def of_needed(cls, network: Network, examples: Examples, needed: npt.NDArray[np.bool_]) -> Trials:
        """Trains those of some own labels."""
        left_out = ~needed
        return cls(
            train_linear(network, examples.of_labels(needed)),
            lambda cost: train_linear(network, examples.of_labels(left_out), cost)[cost],
            left_out,
        )

    def whole(self, cost: float) -> LinearClassifiers:
        """The classifiers of all labels at one cost."""
        found = self.by_cost[cost]
        return found if self.rest is None else found.with_others(self.rest(cost), self.left_out)


def _negatives(network: Network, x: SparseRows, own: Lists) -> Lists:
    """For each row the own labels among those that the label prior ranks highest of all that the row does not have."""
    prior, want = network.prior, network.config.linear_negatives
    assert prior is not None
    bias = np.ascontiguousarray(network.output.arrays["bias"][:, 0])
    found = []
    for begin in range(0, len(x), LOOK_UP_ROWS):
        end = min(begin + LOOK_UP_ROWS, len(x))
        some = x.part(begin, end)
        hits = prior.look_up(some, row_lengths(some), own.part(begin, end), bias, want, network.shard)
        found.append(network.collectives.best_hits(hits, want).wait())
    return Lists.concatenate(found)


def _by_label(lists: Lists, labels: int) -> Lists:
    """The rows of each label from the labels of each row."""
    ones = np.ones(lists.nnz, np.int8)
    matrix = sp.csr_matrix((ones, lists.indices, lists.indptr), (lists.rows, labels)).tocsc()
    return Lists(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
