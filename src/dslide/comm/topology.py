"""Which ranks share a machine, and how many threads each of them gets."""

from __future__ import annotations

import os
import socket
import weakref
from dataclasses import dataclass

from dslide.comm.communicator import Communicator
from dslide.util.threads import available_cores


@dataclass(frozen=True)
class LocalRanks:
    """The ranks on this machine."""

    host: str
    ranks: int  # on this machine, this one included
    sharing: int  # of them, those that may run on the same cores as this one, itself included

    @property
    def threads(self) -> int:
        """Threads for this rank, so that all of them together take no more than the cores there are."""
        return max(1, available_cores() // self.sharing)


_known: weakref.WeakKeyDictionary[Communicator, LocalRanks] = weakref.WeakKeyDictionary()


def local_ranks(comm: Communicator) -> LocalRanks:
    """The ranks on this machine. The first call for a communicator is a collective of all its ranks."""
    if comm in _known:
        return _known[comm]
    host = socket.gethostname()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    local = [theirs for name, theirs in comm.gather_objects("machines", [host, cores]) if name == host]
    # Launchers that bind ranks to cores of their own leave nothing to share.
    sharing = sum(not cores or not set(cores).isdisjoint(theirs) for theirs in local)
    return _known.setdefault(comm, LocalRanks(host, len(local), sharing))
