"""The shared memory through which MPI's ranks on one host communicate: files in /dev/shm that stay when the processes
that made them are killed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from glob import glob

from dslide.util.units import counted, format_bytes

FOLDER = "/dev/shm"
_PER_RANK = 1_061_000  # bytes that MPICH 5 touches when it starts; measured with 2 to 8 ranks
_OF_MPICH = re.compile(rf"{FOLDER}/mpich_shm_[0-9a-f]+_\d+")


def unlink_own() -> None:
    """Removes the names of MPICH's segments that this process has mapped, which all ranks of the host must have by now.
    The memory lives on until the last of them ends, however it ends."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for path in {line.split(None, 5)[-1].rstrip("\n") for line in maps if FOLDER in line}:
            if _OF_MPICH.fullmatch(path):
                _unlink(path)


def unlink_of(store: str, node: int, processes: Iterable[int]) -> None:
    """Removes the names of segments that dead ranks left when they started: of MPICH, which calls them by the FNV-1a
    hash of the PMI store's name, and by a node; and of libfabric, which calls them by the process."""
    name = 2166136261
    for byte in store.encode():
        name = (name ^ byte) * 16777619 % (1 << 32)
    _unlink(f"{FOLDER}/mpich_shm_{name:x}_{node}")
    for process in processes:
        for path in glob(f"{FOLDER}/{process}:*"):
            _unlink(path)


def shortage(ranks: int) -> str:
    """A sentence if there is too little shared memory for MPI to start so many ranks here; else empty."""
    try:
        space = os.statvfs(FOLDER)
    except OSError:  # MPICH has other places
        return ""
    free, total, needed = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize, ranks * _PER_RANK
    if free >= needed:
        return ""
    sizes = f"{format_bytes(free)} of {format_bytes(total)} are free"
    return f"{FOLDER} is full: {sizes}, and MPI needs {format_bytes(needed)} for {counted(ranks, 'rank')}"


def _unlink(path: str) -> None:
    with suppress(OSError):
        if os.lstat(path).st_uid == os.geteuid():
            os.unlink(path)
