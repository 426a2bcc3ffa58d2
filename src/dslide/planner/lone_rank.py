"""One rank of a job whose other ranks are not there, to time what a rank does by itself.

Whatever is sent to a rank comes back as its answer at once: messages have the sizes they would have, and what is in
them is plausible as long as every rank has as many neurons. Where ranks compete, for the best hash hits, a row's own
hits would tie with themselves; the others answer with those of other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from dslide.comm import Communicator, Exchange
from dslide.comm.frames import Buffer
from dslide.model.collectives import HASH_HITS

_LINE = 64  # bytes; hits are rotated by a multiple, which is one of whole rows where a row asks for 4, 8 or 16


class LoneRank(Communicator):
    """Rank 0 of so many."""

    def __init__(self, size: int) -> None:
        super().__init__(_Echo(size) if size > 1 else None)

    def post(self, name: str, outgoing: Sequence[Buffer]) -> Exchange:
        if name == HASH_HITS:
            outgoing = [_rotated(bytes(content), rank, self.size) for rank, content in enumerate(outgoing)]
        return super().post(name, outgoing)


class _Echo:
    """A transport that gives back what is sent."""

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
    """The content, begun at the rank's share of it."""
    begin = len(content) * rank // size // _LINE * _LINE
    return content[begin:] + content[:begin]
