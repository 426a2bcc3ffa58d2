"""Ranks that are MPI processes: whether this process is one, the transport between them, and how a job of them ends."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from dslide.comm import liveness
from dslide.comm.communicator import Communicator, solo
from dslide.comm.frames import Buffer
from dslide.errors import CommError, ConfigError, PeerFailed, UserError
from dslide.util import shared_memory, signals

# Variables in which launchers give rank and number of ranks to the processes they start.
_LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, srun --mpi=pmi2
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script itself has no step, and is no rank
)
_TAG = 7
_job: Communicator | None = None


def launched_as(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank and number of ranks that a launcher gave this process; (0, 1) without one.

    Parameters
    ----------
    environment : dict
        Environment variables.

    Returns
    -------
    rank, size : int
    """
    for rank, size in _LAUNCHERS:
        if environment.get(rank, "").isdigit() and environment.get(size, "").isdigit():
            return int(environment[rank]), int(environment[size])
    return 0, 1


def job(limit: float | None = None) -> Communicator:
    """The communicator of the job this process belongs to: all ranks of mpiexec or srun, or this process alone. Made at
    the first call, and the same from then on; a silence limit that is given applies from then on. ConfigError if there
    are ranks but no working MPI between them.

    Parameters
    ----------
    limit : float
        Seconds of silence after which a rank is given up.

    Returns
    -------
    Communicator

    Raises
    ------
    ConfigError
        There are ranks but no working MPI between them.
    """
    global _job
    if _job is None:
        _job = _connect()
    if limit is not None:
        _job.limit = limit
    return _job


def current() -> Communicator | None:
    """The communicator that `job` has made; None before.

    Returns
    -------
    Communicator or None
    """
    return _job


def _connect() -> Communicator:
    rank, size = launched_as()
    if size == 1:
        return solo()
    with _start_limit(rank, size):
        try:
            import mpi4py

            mpi4py.rc.thread_level = "serialized"  # calls come from two threads, one at a time
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            if "failed to map segment" in str(error):  # by the system's loader, if memory is exhausted
                raise MemoryError from None
            hint = "pip install 'dslide[mpi]', or mpi4py built for the MPI of this cluster"
            raise ConfigError(f"this is rank {rank} of {size}, but mpi4py doesn't work ({error}); {hint}") from None
        if size != MPI.COMM_WORLD.size:
            found = f"rank {rank} of {size}, but MPI sees {MPI.COMM_WORLD.size}"
            library = re.split("[,\n]", MPI.Get_library_version())[0].strip()
            raise ConfigError(f"started as {found}: mpi4py uses another MPI than the launcher, {library}")
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise ConfigError("this MPI allows calls from the main thread only; dslide needs MPI_THREAD_SERIALIZED")
        comm = Communicator(MpiTransport(MPI))  # made together, so all ranks share their memory by now
    shared_memory.unlink_own()
    signals.expect_late_signals()
    _leave_properly(comm)
    return comm


class MpiTransport:
    """Bytes over MPI point-to-point messages."""

    def __init__(self, mpi: Any):
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD.Dup()
        self.rank, self.size = int(self._comm.rank), int(self._comm.size)
        # By rank, requests and the bytes they read or fill.
        self._outgoing: list[deque[tuple[Any, bytes]]] = [deque() for _ in range(self.size)]
        self._incoming: list[deque[tuple[Any, bytearray]]] = [deque() for _ in range(self.size)]

    def send(self, to: int, frame: bytes) -> None:
        self._outgoing[to].append((self._comm.Isend([frame, self._mpi.BYTE], to, _TAG), frame))

    def receive(self) -> list[tuple[int, Buffer]]:
        status = self._mpi.Status()
        while (message := self._comm.Improbe(self._mpi.ANY_SOURCE, _TAG, status)) is not None:
            buffer = bytearray(status.Get_count(self._mpi.BYTE))
            self._incoming[status.Get_source()].append((message.Irecv([buffer, self._mpi.BYTE]), buffer))
        arrived: list[tuple[int, Buffer]] = []
        for source, queue in enumerate(self._incoming):
            while queue and queue[0][0].Test():
                arrived.append((source, queue.popleft()[1]))
        for requests in self._outgoing:
            while requests and requests[0][0].Test():
                requests.popleft()
        return arrived

    def sending(self) -> bool:
        return any(self._outgoing)


@contextmanager
def _start_limit(rank: int, size: int) -> Iterator[None]:
    """Kills this process, with an error message, if MPI doesn't start in time. Until it has started no other thread of
    this process can run and no signal is handled: so a process of its own watches, which ends with this one."""
    message = f"rank {rank} of {size}: MPI did not start within {liveness.MPI_START:g} s; are all ranks running?"
    command = [sys.executable, "-IS", "-c", _WATCHER, str(os.getpid()), str(liveness.MPI_START), message]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        watcher.communicate()  # which closes its input


_WATCHER = """
import os, select, signal, sys
pid, seconds, message = sys.argv[1:]
if not select.select([sys.stdin], [], [], float(seconds))[0]:
    print("dslide: error:", message, file=sys.stderr, flush=True)
    os.kill(int(pid), signal.SIGKILL)
"""


def _leave_properly(comm: Communicator) -> None:
    """An uncaught exception ends the whole job, and is printed once; a rank that exits closes its communicator.
    Otherwise the other ranks would wait for it."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, UserError) and error.collective and comm.rank > 0:
            with suppress(CommError):
                comm.barrier("end")  # rank 0 prints it, and then ends the job
        elif not isinstance(error, PeerFailed):  # that rank has printed it
            before(kind, error, trace)
        end_job(comm, f"{kind.__name__}: {error}", error.code if isinstance(error, PeerFailed) else 1)

    def leave() -> None:
        comm.close()
        signals.ignore_late_signals()

    sys.excepthook = hook
    atexit.register(leave)  # runs before MPI_Finalize: the last registered runs first


def end_job(comm: Communicator, message: str, code: int) -> None:
    """Ends this rank with an error, and with it the job, with this exit code; a rank alone is left to its caller.

    Parameters
    ----------
    comm : Communicator
    message : str
        What the other ranks report.
    code : int
        Exit code.
    """
    if comm.size == 1:
        return
    try:
        comm.fail(message, code)
        sys.stdout.flush()
        sys.stderr.flush()
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            time.sleep(liveness.OUTPUT_FORWARDED)
            signal.alarm(liveness.MPI_ABORT)  # in case MPI hangs, while no thread can run
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI would print lines of its own
            mpi.COMM_WORLD.Abort(code)
    finally:
        os._exit(code)  # not MPI_Finalize, which would wait for ranks that are gone
