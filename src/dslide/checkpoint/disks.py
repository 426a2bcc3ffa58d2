"""Which ranks share a disk, and which rank keeps a copy of another's files in case a disk is lost."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dslide.comm import Communicator
from dslide.errors import ModelError, raised_as


def find_disks(folder: Path, comm: Communicator) -> list[list[int]]:
    """The ranks that see one and the same folder under this path, disk by disk; ranks and disks in ascending order.

    A collective; the folder must exist. Each rank creates a file of random name in it, looks for those of the others,
    and removes its own. ModelError on all ranks if one can't.
    """
    token = folder / secrets.token_hex(16)

    def create() -> None:
        with raised_as(ModelError, f"{folder}: nothing can be written there", OSError):
            token.touch()

    try:
        comm.together("files to create in the folder", create)
        names = comm.gather_objects("files created in the folder", token.name)
        seen = [rank for rank, name in enumerate(names) if (folder / name).exists()]
        lowest = comm.gather_objects("files found in the folder", min(seen, default=comm.rank))
    finally:
        with suppress(OSError):
            token.unlink(missing_ok=True)
    comm.barrier("files removed")  # they are gone for every rank when this returns
    return [[rank for rank in range(comm.size) if lowest[rank] == first] for first in sorted(set(lowest))]


def leads(rank: int, disks: Sequence[Sequence[int]]) -> bool:
    """Whether a rank is the lowest of those on its disk."""
    return any(ranks[0] == rank for ranks in disks)


def buddy(rank: int, disks: Sequence[Sequence[int]]) -> int | None:
    """The rank that keeps a copy of what this one writes: on another disk, so that losing one disk loses nothing.
    The ranks of a disk distribute their copies over all other disks; if all disks have the same number of ranks, each
    rank keeps one copy. None if there is only one disk."""
    if len(disks) == 1:
        return None
    own = next(number for number, ranks in enumerate(disks) if rank in ranks)
    place = disks[own].index(rank)
    other = disks[(own + 1 + place % (len(disks) - 1)) % len(disks)]
    return other[place % len(other)]
