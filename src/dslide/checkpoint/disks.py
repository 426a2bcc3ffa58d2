"""Which ranks see the same disk, and who keeps whose files in case one is lost."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dslide.comm import Communicator
from dslide.errors import ModelError


def find_disks(folder: Path, comm: Communicator) -> list[list[int]]:
    """The ranks that see one and the same folder under this path, disk by disk; ranks and disks in ascending order.

    Every rank calls it; the folder is there. Each leaves a file of random name in it, looks for those of the others,
    and takes its own away. ModelError on all ranks if one can't.
    """
    token = folder / secrets.token_hex(16)

    def leave() -> None:
        try:
            token.touch()
        except OSError as error:
            raise ModelError(f"{folder}: nothing can be written there: {error.strerror or error}") from None

    try:
        comm.together("files to leave in the folder", leave)
        names = comm.gather_objects("files left in the folder", token.name)
        seen = [rank for rank, name in enumerate(names) if (folder / name).exists()]
        lowest = comm.gather_objects("files found in the folder", min(seen, default=comm.rank))
    finally:
        with suppress(OSError):
            token.unlink(missing_ok=True)
    comm.barrier("files taken away")  # nobody finds one of them from here on
    return [[rank for rank in range(comm.size) if lowest[rank] == first] for first in sorted(set(lowest))]


def leads(rank: int, disks: Sequence[Sequence[int]]) -> bool:
    """Whether a rank is the lowest of those on its disk."""
    return any(ranks[0] == rank for ranks in disks)


def buddy(rank: int, disks: Sequence[Sequence[int]]) -> int | None:
    """The rank that keeps a copy of what this one writes: on another disk, so that losing one disk loses nothing.
    The ranks of a disk spread theirs over all others; where all disks have as many ranks, each rank keeps one. None if
    there is only one disk."""
    if len(disks) == 1:
        return None
    own = next(number for number, ranks in enumerate(disks) if rank in ranks)
    place = disks[own].index(rank)
    other = disks[(own + 1 + place % (len(disks) - 1)) % len(disks)]
    return other[place % len(other)]
