"""Slots: where a sampled active set has a neuron of a row (active.hpp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from dslide.model.activations import Ids, Offsets


def slot_lists(active: Any) -> tuple[Offsets, Ids]:
    """The neurons of a sampled active set's slots, as CSR lists."""
    if active.is_per_row:
        return active.row_begin, active.ids[active.position]
    count = len(active.ids)
    return np.arange(active.rows + 1, dtype=np.int64) * count, np.tile(active.ids, active.rows)


def slots_of(offsets: Offsets, ids: Ids, active: Any) -> Offsets:
    """The slots of a sampled active set that elements, a part of them, came from."""
    slot_offsets, slot_ids = slot_lists(active)
    slot_rows = np.repeat(np.arange(active.rows), np.diff(slot_offsets))
    rows = np.repeat(np.arange(active.rows), np.diff(offsets))
    bound = int(slot_ids.max(initial=0)) + 1
    return np.searchsorted(slot_rows * bound + slot_ids, rows * bound + ids)
