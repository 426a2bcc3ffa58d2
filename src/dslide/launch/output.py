"""The output multiplexer: merges what several ranks print into one stream, in whole lines. And which lines of mpiexec's
own output are worth showing."""

from __future__ import annotations

import os
from collections.abc import Iterable

_HELD_BYTES = 1 << 16  # a line that is longer is written in pieces
_CLEAR_LINE = b"\r\x1b[K"
_HYDRA = (
    b"=",
    b"YOUR APPLICATION TERMINATED WITH",
    b"This typically refers to a problem with your application",
    b"Please see the FAQ page for debugging",
    b"[mpiexec@",
    b"[proxy",
)
_BOX = b"-" * 20  # begins and ends a message of Open MPI


class OutputMultiplexer:
    """One stream of this process, written to by all ranks in whole lines. If `live`, rank 0 may also write parts of
    lines, like a progress line, which is replaced by what others write meanwhile."""

    def __init__(self, fd: int, live: bool = False):
        self._fd, self._live = fd, live
        self._held: dict[int, bytes] = {}  # by rank: the beginning of a line
        self._partial = False  # the stream ends with a part of a line

    def write(self, rank: int, content: bytes) -> None:
        """Writes what a rank has printed; -1 stands for the launcher."""
        content = self._held.pop(rank, b"") + content
        if not (self._live and rank == 0):
            whole, newline, rest = content.rpartition(b"\n")
            if len(rest) < _HELD_BYTES:
                content, self._held[rank] = whole + newline, rest
        if not content:
            return
        if self._partial and rank != 0:
            self._end_line()
        self._write(content)
        self._partial = not content.endswith(b"\n")

    def finish(self) -> None:
        """Writes lines that were never ended."""
        for rank in sorted((rank for rank, rest in self._held.items() if rest), reverse=True):
            if rank == 0:
                self._write(self._held.pop(0))  # unchanged: nothing follows it
            else:
                self.write(rank, b"\n")
        if self._partial:
            self._end_line()

    def _end_line(self) -> None:
        self._write(_CLEAR_LINE if os.isatty(self._fd) else b"\n")
        self._partial = False

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._fd, rest) :]


def without_banners(lines: Iterable[bytes]) -> list[bytes]:
    """The output of mpiexec without its remarks about a rank that exited."""
    left, in_box = [], False
    for line in lines:
        if line.startswith(_BOX):
            in_box = not in_box
        elif not in_box and not line.startswith(_HYDRA):
            left.append(line)
    return left
