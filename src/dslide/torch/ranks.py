"""The ranks that an output layer is split over: those of a process group of PyTorch, of mpiexec, or this process
alone."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import weakref
from datetime import timedelta
from types import TracebackType

import torch.distributed as dist

from dslide.comm import Communicator, job, launched_as, solo
from dslide.comm.liveness import SILENCE_LIMIT
from dslide.comm.sockets import Address, Listener
from dslide.errors import CommError
from dslide.util.addresses import route_to

_made: weakref.WeakKeyDictionary[dist.ProcessGroup, Communicator] = weakref.WeakKeyDictionary()


def communicator(group: dist.ProcessGroup | None = None, limit: float = SILENCE_LIMIT) -> Communicator:
    """The communicator of the ranks of a process group.

    Made at the first call for the group, which all its ranks make together; the same from then on. The group finds the
    ranks; bytes travel over TCP connections of their own, with heartbeats, so that a rank which waits can say for whom.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        Of any backend; by default the one that ``torch.distributed.init_process_group`` made.
    limit : float
        Seconds of silence after which a rank is given up.

    Returns
    -------
    dslide.comm.Communicator
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise CommError("there is no process group: call torch.distributed.init_process_group first")
    found = group or dist.group.WORLD
    assert found is not None
    if found not in _made:
        _made[found] = _connect(found, limit)
    return _made[found]


def default_communicator(limit: float) -> Communicator:
    """Of the process group, if one of several ranks is initialized; else of mpiexec; else of this process alone."""
    if dist.is_available() and dist.is_initialized():
        if dist.get_world_size() > 1:
            return communicator(limit=limit)
    elif launched_as()[1] > 1:
        return job(limit)
    return solo()


def has_ended(comm: Communicator) -> bool:
    """Whether a communicator is of a process group that was destroyed."""
    group = next((group for group, made in _made.items() if made is comm), None)
    if group is None:
        return False
    try:
        return not dist.is_initialized() or dist.get_rank(group) < 0
    except (RuntimeError, ValueError, KeyError):
        return True


def _connect(group: dist.ProcessGroup, limit: float) -> Communicator:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size == 1:
        return solo()
    if rank < 0:
        raise CommError("this rank is not in the process group")
    if dist.get_backend(group) != "gloo":  # the others send tensors of their own devices only
        group = dist.new_group(dist.get_process_group_ranks(group), backend="gloo")
    try:  # gloo itself would wait for half an hour, and say for nobody
        dist.monitored_barrier(group, timeout=timedelta(seconds=limit), wait_all_ranks=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise CommError(f"not all {size} ranks have made the layer within {limit:g} s: {reason}") from None
    listener, host = Listener(), _host(group, size)
    every: list[tuple[str, int, bytes] | None] = [None] * size
    dist.all_gather_object(every, (host, listener.port, listener.secret), group)
    addresses = [Address(*each) for each in every if each is not None]
    comm = Communicator(listener.connect(rank, addresses, limit), limit)
    _leave_properly(comm)
    return comm


def _host(group: dist.ProcessGroup, size: int) -> str:
    """The address of this rank for the others: where its route to rank 0, or to another machine, begins."""
    name = socket.gethostname()
    route = route_to(os.environ.get("MASTER_ADDR") or name)
    every: list[tuple[str, str] | None] = [None] * size
    dist.all_gather_object(every, (name, route[0] if route else "127.0.0.1"), group)
    known = [each for each in every if each is not None]
    if all(theirs == name for theirs, _ in known):
        return "127.0.0.1"
    own = known[dist.get_rank(group)][1]
    others = [address for _, address in known if not address.startswith("127.")]
    if own.startswith("127.") and others:  # as Debian has a machine's own name in /etc/hosts
        route = route_to(others[0])
        return route[0] if route else own
    return own


def _leave_properly(comm: Communicator) -> None:
    """A rank that exits says so to the others, which would wait for it; one that fails says why."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        comm.fail(f"{kind.__name__}: {error}", 1)

    sys.excepthook = hook
    atexit.register(comm.close)
