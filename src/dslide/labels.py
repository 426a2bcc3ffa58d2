"""The labels of a batch as the network wants them."""

from __future__ import annotations

from dataclasses import dataclass

from . import _core
from .activations import Floats, Ids, Offsets
from .data import SparseRows


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
