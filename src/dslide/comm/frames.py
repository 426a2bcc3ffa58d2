"""Frames, the units in which ranks send each other bytes, and the interface of what carries them. A frame has a header,
a checksum, and content; the header has the kind of frame, its exchange (a checksum of the name), and a number: how many
pieces of messages this rank has sent to that one before."""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct("<BIQ")  # kind, checksum of the exchange's name, number
_CHECK = struct.Struct("<I")  # checksum of content and header
PIECE = 1 << 20  # bytes; each piece counts as a heartbeat, also where a whole message takes minutes
OVERHEAD = _HEADER.size + _CHECK.size  # bytes of a frame that are not content


class Kind(IntEnum):
    """What a frame is."""

    PIECE = 0  # of a message, and more of it will follow
    LAST = 1  # piece of a message; most have only this one
    HEARTBEAT = 2  # this rank is alive
    FAILED = 3  # this rank ends with an error
    BYE = 4  # this rank has left
    SIDE = 5  # a message of the side channel, independent of the order of exchanges


class Frame(NamedTuple):
    kind: int
    name: int
    number: int
    content: memoryview  # read-only


def pack(kind: Kind, name: str, number: int, content: Buffer, content_check: int | None = None) -> bytes:
    """The bytes of a frame; the content is copied. `content_check`: its checksum, if that is known."""
    header = _HEADER.pack(kind, name_check(name), number)
    check = _CHECK.pack(zlib.crc32(header, zlib.crc32(content) if content_check is None else content_check))
    return b"".join((header, check, content))


def unpack(frame: Buffer) -> Frame | None:
    """A frame from its bytes; None if it is damaged. The content is not copied."""
    view = memoryview(frame).toreadonly()
    if len(view) < OVERHEAD:
        return None
    header, content = view[: _HEADER.size], view[OVERHEAD:]
    if _CHECK.unpack_from(view, _HEADER.size)[0] != zlib.crc32(header, zlib.crc32(content)):
        return None
    kind, name, number = _HEADER.unpack(header)
    return Frame(kind, name, number, content)


@lru_cache(maxsize=256)
def name_check(name: str) -> int:
    """The checksum of an exchange's name."""
    return zlib.crc32(name.encode())


class Transport(Protocol):
    """Carries bytes between ranks; frames between two ranks arrive in the order in which they were sent."""

    @property
    def rank(self) -> int:
        """The rank at this end."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def send(self, to: int, frame: bytes) -> None:
        """Begins to send; never blocks.

        Parameters
        ----------
        to : int
            Rank.
        frame : bytes
        """

    def receive(self) -> list[tuple[int, Buffer]]:
        """The new frames, each with its source rank; never blocks. Also continues what is being sent.

        Returns
        -------
        list of (rank, frame)
        """

    def sending(self) -> bool:
        """Whether frames are still being sent.

        Returns
        -------
        bool
        """
