"""How a batch is cut into parts that cross the network while others are computed."""

from __future__ import annotations

from itertools import pairwise

# Parts of a batch that is large enough. Four hid more of the exchange on 2 and 4 nodes at 100 Mbit/s and 1 Gbit/s, but
# their messages and smaller products cost more than that.
PARTS = 2
CHUNK = 128  # rows that the output layer's kernels process at a time; parts begin at multiples


def micro_batches(rows: int, parts: int) -> list[tuple[int, int]]:
    """Cuts the rows of a batch into at most `parts` parts: first row and end of each."""
    cuts = sorted({0, rows, *(rows * i // parts // CHUNK * CHUNK for i in range(1, parts))})
    return list(pairwise(cuts))
