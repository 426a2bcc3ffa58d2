"""How a command ends: its exit code and what it says, alone or as one of several ranks, of which one is enough to say
what all of them know."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable

from dslide.comm import Communicator, current, end_job, job, launched_as
from dslide.errors import (
    BROKEN_PIPE,
    BUG,
    DIVERGED,
    INTERRUPTED,
    LOST,
    TERMINATED,
    USER_ERROR,
    CommError,
    Diverged,
    PeerFailed,
    Terminated,
    UserError,
)
from dslide.launch.rank_client import link

_RANK_0_SECONDS = 2.0  # in which rank 0 must have said what all ranks know


def run_to_end(work: Callable[[], int]) -> int:
    """Does the work and returns the exit code. Errors that a user can meet become one sentence on stderr; in a job of
    several ranks, any error ends all of them."""
    launcher = None
    try:
        launcher = link()
        code = work()
        sys.stdout.flush()
    except SystemExit:
        raise
    except BaseException as error:
        if launched_as()[1] == 1 and launcher is None:
            return _end_alone(error)
        return _end_in_job(error)
    if launcher is not None:
        launcher.end(code)
    return code


def _end_alone(error: BaseException) -> int:
    message, code = _ending(error)
    if code == BUG:
        raise error
    if code == BROKEN_PIPE:
        _discard_output()
    else:
        _say(message)
    return code


def _end_in_job(error: BaseException) -> int:
    comm, rank = current(), launched_as()[0]
    message, code = _ending(error)
    alike = comm is None and code != LOST  # all ranks meet the same before they meet each other, but for lack of memory
    known_to_all = alike or isinstance(error, (Diverged, Terminated)) or getattr(error, "collective", False)
    if isinstance(error, PeerFailed) or (known_to_all and rank != 0 and _said_by_rank_0()):
        pass
    elif code == BROKEN_PIPE:
        _discard_output()
    elif code == BUG:
        traceback.print_exception(error)
    else:
        alone = rank == 0 and (known_to_all or code == INTERRUPTED)
        _say(message if alone else f"rank {rank} ({socket.gethostname()}): {message}")
    if (launcher := link()) is not None:
        launcher.end(code, _blamed(error, rank))
    if (comm := _meet()) is not None:
        end_job(comm, message, code)
    return code


def _ending(error: BaseException) -> tuple[str, int]:
    """What to say, and the exit code."""
    match error:
        case PeerFailed():
            return error.message, error.code
        case CommError():
            return str(error), LOST
        case UserError():
            return str(error), USER_ERROR
        case Terminated():
            return str(error), TERMINATED
        case Diverged():
            return str(error), DIVERGED
        case BrokenPipeError():  # the reader of our output has seen enough
            return "nobody reads the output any more", BROKEN_PIPE
        case _ if _is_memory(error):  # perhaps others on this machine need less the next time
            return "out of memory; `dslide plan` says what a network needs", LOST
        case OSError():
            name = f"{error.filename}: " if error.filename else ""
            return f"{name}{error.strerror or error}", USER_ERROR
        case KeyboardInterrupt():
            return "interrupted", INTERRUPTED
    return f"{type(error).__name__}: {error}", BUG


def _is_memory(error: BaseException) -> bool:
    """Whether there was too little memory for something, also for a thread or a library."""
    match error:
        case MemoryError() | OSError(errno=errno.ENOMEM):
            return True
        case RuntimeError() | ImportError():
            return any(said in str(error) for said in ("can't start new thread", "failed to map segment"))
    return False


def _blamed(error: BaseException, rank: int) -> tuple[int, ...]:
    """Ranks to blame for the error of this one."""
    match error:
        case PeerFailed() | Diverged() | KeyboardInterrupt():  # that rank names those to blame, or there are none
            return ()
        case CommError() | Terminated():
            return error.blamed
        case UserError(collective=True):
            return error.blamed
    return (rank,)


def _said_by_rank_0() -> bool:
    """Whether rank 0 has failed too, and so has said what all ranks know."""
    comm, end = _meet(), time.monotonic() + _RANK_0_SECONDS
    while time.monotonic() < end:
        if comm is not None and isinstance(comm.failure, PeerFailed):
            return True
        time.sleep(0.01)
    return False


def _meet() -> Communicator | None:
    """The job's communicator, made now if the error came before it: without it others would not hear of the error. None
    if there is none to be had."""
    try:
        return job()
    except Exception:
        return None


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str) -> None:
    print(f"dslide: error: {' '.join(message.split())}", file=sys.stderr)
