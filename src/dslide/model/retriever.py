"""What looks up the output neurons that matter for a row. Training asks for its best few, prediction for all that are
worth scoring. There are two kinds: hash tables (lsh.py) and cells of hidden vectors (cells.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dslide.model.activations import Activations
from dslide.util.arrays import Ids
from dslide.util.csr import Lists

Ranking = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Hits:
    """Own neurons that rows look up, at most so many in a row. `ranking`, highest first, compares them with those of
    other ranks; None: hits are in no order, and each rank keeps its own."""

    lists: Lists
    ranking: Ranking | None


@dataclass(frozen=True)
class Candidates:
    """Own neurons to score: lists that ascend, and the number of the one that each row has."""

    lists: Lists
    list_of: Ids


class Retriever(Protocol):
    """Looks up own neurons of a layer."""

    @property
    def built(self) -> bool:
        """Whether there is anything to look up in."""

    def look_up(self, x: Activations, want: int, step: int, first_row: int = 0) -> Hits:
        """At most `want` own neurons for each row of a batch; `first_row` is the first one's number in it."""

    def candidates(self, x: Activations) -> Candidates:
        """All own neurons that may be among the best of each row."""
