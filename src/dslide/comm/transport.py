"""The interface of what carries a communicator's bytes between ranks."""

from __future__ import annotations

from typing import Protocol

from dslide.comm.frames import Buffer


class Transport(Protocol):
    """Carries bytes between ranks; frames between two ranks arrive in the order in which they were sent."""

    @property
    def rank(self) -> int:
        """This process's number."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def send(self, to: int, frame: bytes) -> None:
        """Begins to send; never blocks."""

    def receive(self) -> list[tuple[int, Buffer]]:
        """The frames that arrived since the last call, each with its source rank; never blocks. Also continues what is
        being sent."""

    def sending(self) -> bool:
        """Whether frames are still being sent."""
