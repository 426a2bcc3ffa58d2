"""One exchange between ranks, from its post to its completion."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dslide.comm.frames import Buffer

if TYPE_CHECKING:
    from dslide.comm.communicator import Communicator


class Exchange:
    """One exchange in flight."""

    def __init__(self, comm: Communicator, name: str, number: int, own: bytes):
        self.name, self.number, self._comm = name, number, comm
        self.step = comm.step
        self.arrived: dict[int, Buffer] = {comm.rank: own}
        self.begun = self.complete_at = time.monotonic()
        self.counted = False  # whether its times are included in the communicator's sums

    def wait(self) -> list[Buffer]:
        """The messages of all ranks, in rank order; the same if called again. CommError if one can't arrive."""
        return self._comm._wait(self)

    def __str__(self) -> str:
        return f'exchange "{self.name}" of step {self.step}'
