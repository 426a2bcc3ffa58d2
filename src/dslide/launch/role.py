"""Which role this process has. The same program, with the same arguments, plays all of them."""

from __future__ import annotations

import os
from enum import Enum, auto

from dslide.comm.mpi import launched_as
from dslide.launch.protocol import LAUNCHER, LauncherAddress
from dslide.launch.rank_client import RankClient


class Role(Enum):
    """What a process is."""

    USER = auto()  # started by a user: works alone or, if several ranks are asked for, is their launcher or supervisor
    RANK = auto()  # a rank started by a launcher, to which it has a RankClient
    FOREIGN_RANK = auto()  # a rank started by mpiexec or srun without a launcher


_client: RankClient | None = None


def role() -> Role:
    """The role of this process: RANK if the launcher's variable is set, FOREIGN_RANK if only variables of MPI are."""
    if rank_client() is not None:
        return Role.RANK
    return Role.FOREIGN_RANK if launched_as()[1] > 1 else Role.USER


def rank_client() -> RankClient | None:
    """The connection to the launcher of this rank; None in any other role.

    The first call connects. It also removes the launcher's variable from the environment: processes that a rank starts
    are not ranks, and must not connect."""
    global _client
    address = os.environ.pop(LAUNCHER, None)
    if address is not None and _client is None:
        _client = RankClient(LauncherAddress.parse(address))
        _client.listen()  # an error of this is reported by the client
    return _client
