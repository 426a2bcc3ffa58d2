"""Active sets: which neurons of a layer are computed for the rows of a batch.

The native `ActiveSet` (src/core/layers/active_set.hpp) is all neurons, or one list that the rows of a batch share, or a
list for each row. Every (row, active neuron) pair has a slot: logits and their gradients are arrays by slot.
"""

from __future__ import annotations

import numpy as np

from dslide._core import ActiveSet
from dslide.model.sharding import WHOLE, Shard
from dslide.util.arrays import Floats, Ids, Offsets
from dslide.util.csr import Lists


def all_neurons(neurons: int, rows: int) -> ActiveSet:
    """Every neuron for every row."""
    return ActiveSet.everything(neurons, rows)


def sampled(
    wanted: Lists, hits: Lists | None, negatives: int, seed: int, *, per_row: bool, neurons: int, total: int,
    shard: Shard = WHOLE, correct: bool = False, probability: Floats | None = None,
) -> ActiveSet:  # fmt: skip
    """The neurons that rows want (their labels), their hash hits, and so many random negatives out of all `total`
    neurons of the layer, of which `neurons` are owned; or each own neuron with its `probability`. `correct`: sampled
    neurons are weighted by the inverse of their probability."""
    hit_indptr, hit_indices = (None, None) if hits is None else (hits.indptr, hits.indices)
    return ActiveSet.sampled(
        per_row, neurons, wanted.indptr, wanted.indices, hit_indptr, hit_indices, negatives, seed, correct, total,
        shard.stripe, probability,
    )  # fmt: skip


def of_rows(lists: Lists, neurons: int) -> ActiveSet:
    """A list of neurons for each row."""
    return ActiveSet.sampled(True, neurons, lists.indptr, lists.indices, None, None, 0, 0, False)


def of_batch(ids: Ids, rows: int, neurons: int) -> ActiveSet:
    """The same neurons, ascending, for all rows."""
    indptr = np.zeros(rows + 1, np.int64)
    indptr[1:] = len(ids)
    return ActiveSet.sampled(False, neurons, indptr, ids, None, None, 0, 0, False)


def slot_lists(active: ActiveSet) -> Lists:
    """The neuron of each slot of a sampled active set, by row."""
    if active.is_per_row:
        return Lists(active.row_begin, active.ids[active.position])
    return Lists(np.arange(active.rows + 1, dtype=np.int64) * len(active.ids), np.tile(active.ids, active.rows))


def slots_of(lists: Lists, active: ActiveSet) -> Offsets:
    """The slots of some (row, neuron) pairs that a sampled active set has."""
    slots = slot_lists(active)
    bound = int(slots.indices.max(initial=0)) + 1
    return np.searchsorted(slots.row_numbers() * bound + slots.indices, lists.row_numbers() * bound + lists.indices)
