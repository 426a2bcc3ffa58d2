"""Cells of hidden vectors: looks up the output neurons with the largest logits for vectors like a row's.

Hidden vectors of recent rows are clustered by k-means. Every cell has the labels with the largest logits at its centre,
bias included. A row is looked up in the cell whose centre is nearest, and picks the best of its labels by its own
logits. All ranks have the same hidden vectors, and so the same cells with the same labels.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.errors import ModelError
from dslide.model.activations import Activations, Dense
from dslide.model.cell_arrays import CELLS, CENTRES, LABELS, RECENT, SAMPLE, SEEN, VALUES
from dslide.model.collectives import Collectives
from dslide.model.layer import Layer
from dslide.model.retriever import Candidates, Hits
from dslide.model.storage import ArraySource, ChangeListener, checked
from dslide.util.arrays import Array, Floats, Ids, aligned_zeros, padded
from dslide.util.csr import Lists, indptr_of

ROUNDS = 4  # of k-means at each rebuild, from the centres before
CHECKED_ROWS, CHECKED_LABELS = 32, 5  # the share of these rows' best labels that are in their cells is measured
NOWHERE = np.float32(-1e30)  # score of a cell without rows


@dataclass(frozen=True)
class CellStats:
    """What is measured when cells are rebuilt."""

    recall: float  # share of the best labels of some rows that are among those of their cells
    cells: int  # that have rows
    largest: float  # share of the rows in the largest cell
    seconds: float


class Cells:
    """The cells of one output layer: centres, (cells, padded inputs), and the labels of each cell, (cells, labels), by
    their numbers in the whole layer, best first; -1 in cells that have none. All ranks have the same."""

    def __init__(self, layer: Layer, labels: int, collectives: Collectives) -> None:
        """`labels`: of a cell."""
        self.layer, self.collectives, self.shard = layer, collectives, collectives.shard
        self.stats: CellStats | None = None  # of the last rebuild
        self.rebuilds = 0
        self._labels = labels
        self.forget()

    def forget(self) -> None:
        """There is nothing to look up in any more."""
        centres = aligned_zeros(CELLS, padded(self.layer.inputs))
        self._set(centres, np.full((CELLS, self._labels), -1, np.int32))

    def _set(self, centres: Floats, labels: Ids) -> None:
        """Uses new arrays, and leaves the old ones to whoever still reads them."""
        self.state: dict[str, Array] = {CENTRES: centres, LABELS: labels}
        self.built = bool((labels[:, 0] >= 0).any())
        owned = np.sort(np.where((labels >= 0) & self.shard.owns(labels), labels, -1), axis=1)
        is_own = owned >= 0
        self.lists = Lists(indptr_of(is_own.sum(axis=1)), self.shard.to_local(owned[is_own]))  # own ones of each cell
        self._nearest = centre_layer(centres, labels[:, 0] >= 0)

    def load(self, arrays: Mapping[str, Array], prefix: str) -> None:
        """Restores arrays of a network, which may be mapped; ModelError if they are damaged."""
        found = [array_of(arrays, prefix + name, own) for name, own in self.state.items()]
        low, high = int(found[1].min(initial=0)), int(found[1].max(initial=0))
        if low < -1 or high >= self.layer.total:
            raise ModelError(f"array {prefix}{LABELS}: label numbers must be below {self.layer.total}, not {high}")
        self._set(found[0], found[1])

    def build(self, rows: Floats) -> int:
        """Makes cells of hidden vectors, (rows, padded inputs), for the layer's weights as they are; returns how many
        neurons were looked at."""
        start = time.perf_counter()
        centres, sizes = k_means(rows, self.state[CENTRES] if self.built else None)
        checked_rows = rows[np.linspace(0, len(rows) - 1, CHECKED_ROWS).astype(np.int64)]
        best = self._best_labels(np.concatenate([centres, checked_rows]))
        labels, right = best[:CELLS].copy(), best[CELLS:, :CHECKED_LABELS]
        labels[(sizes == 0)[:, None] | (labels < 0)] = -1
        self._set(centres, labels)
        cells = self._cells_of(np.ascontiguousarray(checked_rows))
        recall = np.mean([np.isin(right[i], labels[cell]).mean() for i, cell in enumerate(cells)])
        filled, largest = int(np.count_nonzero(sizes)), float(sizes.max() / len(rows))
        self.stats = CellStats(float(recall), filled, largest, time.perf_counter() - start)
        self.rebuilds += 1
        return self.layer.neurons

    def _best_labels(self, vectors: Floats) -> Ids:
        """The labels with the largest logits over all ranks, best first, for each of some hidden vectors."""
        shape = len(vectors), self._labels
        ids, logits = np.empty(shape, np.int32), np.empty(shape, np.float32)
        self.layer.native.topk(np.ascontiguousarray(vectors), ids, logits)
        return self.collectives.best_labels(ids, logits)[0]

    def _cells_of(self, x: Floats) -> Ids:
        """The cell of each row of hidden activations."""
        return nearest(self._nearest, x)[0]

    def look_up(self, x: Activations, want: int, step: int, first_row: int = 0) -> Hits:
        """The own labels of each row's cell with the row's largest logits. Rows are scored by cell, so that the weights
        of a cell's labels are in cache for all of its rows."""
        assert isinstance(x, Dense)
        cells = self._cells_of(x.values)
        order = np.argsort(cells, kind="stable")
        lists = _core.join_candidates(self.layer.neurons, self.lists.indptr, self.lists.indices, cells[order])
        best = np.empty((x.rows, want), np.int32), np.empty((x.rows, want), np.float32)
        self.layer.native.topk_of_lists(x.values[order], *lists, *best)
        ids, logits = np.empty_like(best[0]), np.empty_like(best[1])
        ids[order], logits[order] = best
        found = ids >= 0
        hits = Lists(indptr_of(found.sum(axis=1)), ids[found])
        return Hits(hits, _core.rank_keys(logits[found], self.shard.to_global(hits.indices)))

    def candidates(self, x: Activations) -> Candidates:
        """The own labels of each row's cell."""
        assert isinstance(x, Dense)
        return Candidates(self.lists, self._cells_of(x.values))


class RecentRows:
    """Hidden vectors of the last rows that were trained on, in a ring: (rows, padded inputs), and how many were seen.
    All ranks have the same."""

    def __init__(self, inputs: int) -> None:
        self.state: dict[str, Array] = {
            VALUES: aligned_zeros(SAMPLE, padded(inputs)), SEEN: np.zeros(1, np.int64)
        }  # fmt: skip
        self.listener: ChangeListener | None = None

    @property
    def rows(self) -> Floats:
        """Those that are known."""
        return self.state[VALUES][: min(SAMPLE, int(self.state[SEEN][0]))]

    def add(self, x: Floats) -> None:
        """Adds the rows of a batch."""
        x = x[-SAMPLE:]
        seen = int(self.state[SEEN][0])
        places = (np.arange(seen, seen + len(x)) % SAMPLE).astype(np.int32)
        if self.listener is not None:
            for name, changed in ((VALUES, places), (SEEN, None)):
                if RECENT + name in self.listener:
                    self.listener.before_change(RECENT + name, changed)
        self.state[VALUES][places] = x
        self.state[SEEN][0] = seen + len(x)

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restores arrays of a network, which may be mapped; ModelError if they are damaged."""
        self.state = {name: array_of(arrays, RECENT + name, own) for name, own in self.state.items()}
        if self.state[SEEN][0] < 0:
            raise ModelError(f"array {RECENT}{SEEN}: a number of rows can't be below 0")


def array_of(arrays: Mapping[str, Array], name: str, like: Array) -> Array:
    """The array of this name, a copy if it is read from another place; ModelError if it is not like the given one."""
    if not isinstance(arrays, ArraySource):
        return checked(arrays, name, like.dtype, like.shape)
    found = np.empty_like(like)
    arrays.copy_into(name, found)
    return found


def k_means(rows: Floats, first: Floats | None) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Centres of rows, (CELLS, padded inputs), and how many rows each had in the last of some rounds that begin with
    the centres `first`, or with rows at even distances. A centre without rows moves to the row that is furthest from
    its own; those for which there is none are left."""
    centres = aligned_zeros(CELLS, rows.shape[1])
    if first is None:
        starts = np.unique(np.linspace(0, len(rows) - 1, CELLS).astype(np.int64))
        centres[: len(starts)] = rows[starts]
        used = np.arange(CELLS) < len(starts)
    else:
        centres[:] = first
        used = np.ones(CELLS, np.bool_)
    rows, lengths = np.ascontiguousarray(rows), np.einsum("ij,ij->i", rows, rows)
    sizes = np.zeros(CELLS, np.int64)
    for last in [False] * ROUNDS + [True]:
        cells, scores = nearest(centre_layer(centres, used), rows)
        sizes = np.bincount(cells, minlength=CELLS)
        if last:
            break
        filled = sizes > 0
        begins = indptr_of(sizes[filled])[:-1]
        centres[filled] = np.add.reduceat(rows[np.argsort(cells, kind="stable")], begins, axis=0)
        centres[filled] /= sizes[filled, None]
        empty = np.flatnonzero(~filled)
        furthest = np.argsort(2 * scores - lengths, kind="stable")[: min(len(empty), len(rows) - int(filled.sum()))]
        centres[empty[: len(furthest)]] = rows[furthest]
        used[empty[: len(furthest)]] = True
    return centres, sizes


def nearest(centres: Any, x: Floats) -> tuple[Ids, Floats]:
    """The nearest centre of each row, and the product with it minus half its squared length."""
    cells, scores = np.empty((len(x), 1), np.int32), np.empty((len(x), 1), np.float32)
    centres.topk(x, cells, scores)
    return np.maximum(cells[:, 0], 0), scores[:, 0]


def centre_layer(centres: Floats, used: npt.NDArray[np.bool_]) -> Any:
    """A layer whose neuron with the largest output is the nearest of the centres that are used."""
    offsets = np.where(used, -0.5 * np.einsum("ij,ij->i", centres, centres), NOWHERE).astype(np.float32)
    none, clock = np.zeros((0, 0), np.float32), np.zeros(0, np.uint32)
    weights = _core.Parameters(centres, none, none, clock, centres.shape[1])
    return _core.DenseLayer(weights, _core.Parameters(offsets[:, None], none, none, clock, 1))
