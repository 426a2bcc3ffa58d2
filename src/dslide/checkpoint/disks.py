"""Which ranks share a disk, and which rank keeps a copy of another's files in case a disk is lost."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dslide.comm import Communicator
from dslide.errors import ModelError, raised_as

T = TypeVar("T")


def on_disks(comm: Communicator, what: str, failure: str, work: Callable[[], T]) -> T:
    """Does the work on every rank; ModelError on all, `failure` and the reason, if it fails on the disk of one."""

    def attempt() -> T:
        with raised_as(ModelError, failure, OSError):
            return work()

    return comm.together(what, attempt)


def find_disks(folder: Path, comm: Communicator) -> list[list[int]]:
    """The ranks that see one and the same folder under this path, disk by disk, in ascending order. A collective; each
    rank creates a file of random name in the folder, which must exist, and looks for those of the others."""
    token = folder / secrets.token_hex(16)
    try:
        on_disks(comm, "files to create in the folder", f"{folder}: nothing can be written there", token.touch)
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
    """The rank on another disk that keeps a copy of what this one writes; None if there is only one disk. The copies of
    a disk are distributed over all others; if all disks have the same number of ranks, each rank keeps one copy."""
    if len(disks) == 1:
        return None
    own = next(number for number, ranks in enumerate(disks) if rank in ranks)
    place = disks[own].index(rank)
    other = disks[(own + 1 + place % (len(disks) - 1)) % len(disks)]
    return other[place % len(other)]
