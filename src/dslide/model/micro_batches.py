"""How a batch is cut into the parts that ranks exchange one by one, computing the next meanwhile."""

from __future__ import annotations

from itertools import pairwise

from dslide.config import Config

# A batch is cut into so many parts if it is large enough. With four, on 2 and 4 nodes at 100 Mbit/s and 1 Gbit/s, more
# was hidden, but messages and small products cost more than that.
PARTS = 2
CHUNK = 128  # rows of the batch that the output layer takes at a time: parts are made of these


def exchanged_parts(config: Config, rows: int, ranks: int) -> list[tuple[int, int]]:
    """Cuts a batch into the parts that are exchanged one by one: their first and last rows. They begin at multiples of
    128, as the output layer asks for."""
    parts = 1 if ranks == 1 else config.micro_batches or PARTS
    cuts = sorted({0, rows, *(rows * i // parts // CHUNK * CHUNK for i in range(1, parts))})
    return list(pairwise(cuts))
