"""What carries a communicator's bytes between ranks."""

from __future__ import annotations

from typing import Protocol

from dslide.comm.frames import Buffer


class Transport(Protocol):
    """Carries bytes between ranks; frames between two ranks arrive in the order in which they were sent."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def send(self, to: int, frame: bytes) -> None:
        """Begins to send; never waits."""

    def receive(self) -> list[tuple[int, Buffer]]:
        """What has arrived since the last call, with the rank it came from; never waits. Also moves on what is
        being sent."""

    def sending(self) -> bool:
        """Whether something is still on its way out."""
