"""How a command exits, in every role: its exit code, its error message, and what it reports to launcher and other
ranks. An error that all ranks have is printed by one of them."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from dslide.comm import Communicator, current, end_job, job, launched_as, liveness
from dslide.errors import BROKEN_PIPE, BUG, INTERRUPTED, LOST, CommError, Diverged, PeerFailed, Terminated, UserError
from dslide.launch.rank_client import rank_client

# Not the code of UserError: there may be more memory next time.
_OUT_OF_MEMORY = "out of memory; `dslide plan` says what a network needs", LOST
_SIGNS_OF_FULL_MEMORY = ("can't start new thread", "failed to map segment")  # in errors of threads and libraries


def run_to_end(work: Callable[[], int]) -> int:
    """Does the work and returns the exit code. Errors of the user become one sentence on stderr; in a job of several
    ranks, any error ends all of them."""
    try:
        client = rank_client()  # which redirects the output of a rank to its launcher
        code = work()
        sys.stdout.flush()
    except SystemExit:
        raise
    except BaseException as error:
        alone = rank_client() is None and launched_as()[1] == 1
        return _end_alone(error) if alone else _end_in_job(error)
    if client is not None:
        client.report_exit(code)
    return code


def _end_alone(error: BaseException) -> int:
    message, code = _ending(error)
    if code == BUG:
        raise error
    if code == BROKEN_PIPE:
        _discard_output()
    else:
        _print_error(message)
    return code


def _end_in_job(error: BaseException) -> int:
    comm, rank, client = current(), launched_as()[0], rank_client()
    (message, code), sentence = _ending(error), ""
    alike = comm is None and code != LOST  # before ranks communicate all have the same errors, except lack of memory
    known_to_all = alike or isinstance(error, (Diverged, Terminated)) or getattr(error, "collective", False)
    if isinstance(error, PeerFailed) or (known_to_all and rank != 0 and _printed_by_rank_0()):
        pass
    elif code == BROKEN_PIPE:
        _discard_output()
    elif code == BUG:
        traceback.print_exception(error)
    else:
        of_all = rank == 0 and (known_to_all or code == INTERRUPTED)
        sentence = _print_error(message if of_all else f"rank {rank} ({socket.gethostname()}): {message}")
    if client is not None:
        client.report_exit(code, _blamed(error, rank), sentence)
    if (comm := _connect()) is not None:
        end_job(comm, message, code)
    return code


def _ending(error: BaseException) -> tuple[str, int]:
    """The error message, and the exit code."""
    match error:
        case PeerFailed():
            return error.message, error.code
        case CommError() | UserError() | Terminated() | Diverged():
            return str(error), error.code
        case BrokenPipeError():  # like `| head`
            return "nobody reads the output any more", BROKEN_PIPE
        case MemoryError() | OSError(errno=errno.ENOMEM):
            return _OUT_OF_MEMORY
        case RuntimeError() | ImportError() if any(sign in str(error) for sign in _SIGNS_OF_FULL_MEMORY):
            return _OUT_OF_MEMORY
        case OSError():
            name = f"{error.filename}: " if error.filename else ""
            return f"{name}{error.strerror or error}", UserError.code
        case KeyboardInterrupt():
            return "interrupted", INTERRUPTED
    return f"{type(error).__name__}: {error}", BUG


def _blamed(error: BaseException, rank: int) -> tuple[int, ...]:
    """The ranks that caused the error of this one."""
    match error:
        case PeerFailed() | Diverged() | KeyboardInterrupt():  # the other rank reports them, or there are none
            return ()
        case CommError() | Terminated() | UserError(collective=True):
            return error.blamed
    return (rank,)


def _printed_by_rank_0() -> bool:
    """Whether rank 0 has failed too, and so has printed the error that all ranks have."""
    comm, end = _connect(), time.monotonic() + liveness.RANK_0_REPORT
    while time.monotonic() < end:
        if comm is not None and isinstance(comm.failure, PeerFailed):
            return True
        time.sleep(0.01)
    return False


def _connect() -> Communicator | None:
    """The job's communicator, made now if the error came first, to notify the other ranks; None if that fails."""
    with suppress(Exception):
        return job()
    return None


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(message: str) -> str:
    """Prints it as one line; the line without its prefix."""
    line = " ".join(message.split())
    print(f"dslide: error: {line}", file=sys.stderr)
    return line
