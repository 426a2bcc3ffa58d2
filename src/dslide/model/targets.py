"""The labels of a batch as the network wants them."""

from __future__ import annotations

from dataclasses import dataclass

from dslide import _core
from dslide.data import SparseRows
from dslide.model.activations import Floats, Ids, Offsets


@dataclass(frozen=True)
class Labels:
    """The batch's labels as training targets."""

    offsets: Offsets  # rows + 1
    ids: Ids
    targets: Floats


def targets(y: SparseRows, loss: str) -> Labels:
    """Label weights as training targets: for softmax in proportion within a row, for sigmoid as they are."""
    weights: Floats = _core.row_shares(y.indptr, y.values) if loss == "softmax" else y.values
    return Labels(y.indptr, y.indices, weights)
