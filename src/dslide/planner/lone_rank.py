"""A single rank that acts as one of several, to time the compute of a rank without the others.

Each message to another rank is echoed as that rank's answer: messages have the right sizes, and plausible content as
long as every rank has the same number of neurons. Where ranks compete, for the best hash hits, a row's own hits would
tie with themselves; so the other ranks answer with the hits of other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from dslide.comm import Communicator, Exchange
from dslide.comm.frames import Buffer
from dslide.model.collectives import HASH_HITS

_LINE = 64  # bytes; hits are rotated by a multiple of it, which is whole rows where a row has 4, 8 or 16 hits


class LoneRank(Communicator):
    """Rank 0 of `size` ranks."""

    def __init__(self, size: int) -> None:
        super().__init__(_Echo(size) if size > 1 else None)

    def post(self, name: str, outgoing: Sequence[Buffer]) -> Exchange:
        if name == HASH_HITS:
            outgoing = [_rotated(bytes(content), rank, self.size) for rank, content in enumerate(outgoing)]
        return super().post(name, outgoing)


class _Echo:
    """A transport that returns each frame to its sender."""

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size
        self._answers: list[tuple[int, Buffer]] = []

    def send(self, to: int, frame: bytes) -> None:
        self._answers.append((to, frame))

    def receive(self) -> list[tuple[int, Buffer]]:
        answers, self._answers = self._answers, []
        return answers

    def sending(self) -> bool:
        return False


def _rotated(content: bytes, rank: int, size: int) -> bytes:
    """The content, rotated to begin at the rank's share of it."""
    begin = len(content) * rank // size // _LINE * _LINE
    return content[begin:] + content[:begin]
