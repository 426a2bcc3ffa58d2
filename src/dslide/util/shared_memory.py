"""The shared memory through which MPI's ranks on one host communicate: files in /dev/shm that stay when the processes
that made them are killed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

from dslide.util.units import format_bytes

FOLDER = "/dev/shm"
LEAST_FREE = 1 << 20  # bytes, with less of which MPI can't be expected to work
_OF_MPICH = re.compile(rf"{FOLDER}/mpich_shm_[0-9a-f]+_\d+")


def segments_of(processes: Iterable[int]) -> set[str]:
    """The files of MPICH that these processes have mapped, and that still have their names."""
    found: set[str] = set()
    for process in processes:
        with suppress(OSError), open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(None, 5)[-1].rstrip("\n") for line in maps if FOLDER in line}
            found |= {path for path in paths if _OF_MPICH.fullmatch(path)}
    return found


def remove(segments: Iterable[str]) -> None:
    """Removes the names of segments. Their memory lives on until the last process that has mapped them ends."""
    for path in segments:
        with suppress(OSError):
            os.unlink(path)


def remark() -> str:
    """What there is to say about the space left in /dev/shm; empty if it is not full."""
    with suppress(OSError):
        space = os.statvfs(FOLDER)
        free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
        if free < LEAST_FREE:
            return f"{FOLDER} is full: {format_bytes(free)} of {format_bytes(total)} are free"
    return ""
