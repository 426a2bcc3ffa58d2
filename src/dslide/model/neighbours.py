"""Neighbours: the training rows whose hidden vectors are most like a row's, which vote for their labels.

What the output weights make of a hidden vector is linear; its neighbours are not bound to that, and know which labels
go together. At the end of training the hidden vectors of training rows are kept, scaled to length 1 and rounded to 8
bits, with their labels. They lie in cells, found by k-means, of which a few are searched for a row. The labels of the
nearest rows in these get votes: a neighbour's cosine to a power, of the sum over neighbours. Votes are added to the
logits of the labels that are ranked again, times what they count for each label (calibration.py, VOTE).

All ranks keep the same rows, so that votes need no exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dslide import _core
from dslide.data import Features, SparseRows
from dslide.model.activations import Dense
from dslide.model.cell_arrays import CELLS
from dslide.model.cells import centre_layer, k_means, nearest
from dslide.model.neighbour_arrays import MOST_ROWS, TYPES
from dslide.model.storage import rounded_to_int8
from dslide.util.arrays import Array, Floats, Ids
from dslide.util.csr import indptr_of

if TYPE_CHECKING:
    from dslide.model.network import Network

CLUSTERED_ROWS = 1 << 14  # that cells are made of
PROBES = 4  # cells that are searched for a row, of CELLS


class Neighbours:
    """Training rows, cell by cell: `vector` (rows x stride, one after the other) and `scale` (rows) are their hidden
    vectors, `begin` (rows + 1) and `label` their labels, as lists; `cell` (cells + 1) has the rows of each cell,
    `centre` (cells x stride) its centre; `power` (1) is that of cosines. All ranks have the same."""

    def __init__(self, arrays: Mapping[str, Array], labels: int, count: int) -> None:
        """`arrays` by their names in `TYPES`, which may be mapped from a file; `labels`: of the network; `count`:
        neighbours of a row."""
        self.arrays, self._labels, self._count = dict(arrays), labels, count
        power = float(arrays["power"][0])
        if not 0 <= power < np.inf:
            raise ValueError(f"the power of cosines must be 0 or more, not {power}")
        rows = len(arrays["begin"]) - 1
        centres = np.ascontiguousarray(arrays["centre"].reshape(CELLS, -1))
        used = np.diff(arrays["cell"]) > 0
        none, clock = np.zeros((0, 0), np.float32), np.zeros(0, np.uint32)
        vectors = arrays["vector"].reshape(rows, centres.shape[1])
        stored = _core.Parameters(vectors, none, none, clock, centres.shape[1], arrays["scale"].reshape(rows, 1))
        bias = _core.Parameters(np.zeros((rows, 1), np.float32), none, none, clock, 1)
        self._native = _core.NeighbourIndex(
            centre_layer(centres, used), _core.DenseLayer(stored, bias), arrays["cell"], arrays["begin"],
            arrays["label"], labels,
        )  # fmt: skip

    @classmethod
    def of_rows(cls, network: Network, x: Features, y: SparseRows) -> Neighbours:
        """Keeps training rows that have labels. Ranks call it together."""
        rows = np.flatnonzero(np.diff(y.indptr))
        if len(rows) > MOST_ROWS:
            rows = np.sort(np.random.default_rng(network.config.seed).choice(rows, MOST_ROWS, replace=False))
        pieces = [rounded_to_int8(_of_length_one(h.values)) for h in network.hidden_of(x, rows)]
        vector, scale = (np.concatenate(part) for part in zip(*pieces, strict=True))
        some = np.linspace(0, len(rows) - 1, min(len(rows), CLUSTERED_ROWS)).astype(np.int64)
        centres, sizes = k_means(vector[some] * scale[some], None)
        layer, blocks = centre_layer(centres, sizes > 0), np.array_split(np.arange(len(rows)), len(pieces))
        cells = np.concatenate([nearest(layer, vector[block] * scale[block])[0] for block in blocks])
        order = np.argsort(cells, kind="stable")
        labels = y.take(rows[order])
        arrays = {
            "vector": vector[order].ravel(), "scale": scale[order].ravel(), "begin": labels.indptr,
            "label": labels.indices, "cell": indptr_of(np.bincount(cells, minlength=CELLS)), "centre": centres.ravel(),
            "power": np.ones(1, np.float32),
        }  # fmt: skip
        typed = {name: np.ascontiguousarray(arrays[name], dtype) for name, dtype in TYPES.items()}
        return cls(typed, network.labels, network.config.neighbours)

    def to_power(self, power: float) -> Neighbours:
        """The same with another power of cosines."""
        return Neighbours(self.arrays | {"power": np.array([power], np.float32)}, self._labels, self._count)

    def votes(self, h: Dense, labels: Ids) -> Floats:
        """The share of each row's neighbours, by weight, that have each of some labels, (rows, labels); 0 for -1."""
        found = np.empty(labels.shape, np.float32)
        self._native.votes(
            h.values, np.ascontiguousarray(labels), found, PROBES, self._count, float(self.arrays["power"][0])
        )
        return found


def _of_length_one(x: Floats) -> Floats:
    """The rows scaled to length 1; rows of zeros stay."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(np.divide(x, lengths, out=np.zeros_like(x), where=lengths > 0))
