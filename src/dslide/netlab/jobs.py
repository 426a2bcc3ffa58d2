"""MPI jobs in a lab: one or more ranks on each node, launched from the lab's control namespace."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dslide.errors import ConfigError
from dslide.launch.mpiexec import AS_ROOT, Host, find_mpiexec
from dslide.launch.remote_shell import SHELL
from dslide.netlab.agent import through_agent
from dslide.netlab.lab import DEFAULT_NAME, Lab, Traffic, find, traffic
from dslide.netlab.system import LabError, any_process, end_processes
from dslide.util.signals import handling

_POLL_SECONDS = 0.5  # between checks of the nodes
_END_SECONDS = 5.0  # for a job to exit on SIGTERM
_MPIEXEC_SECONDS = 5.0  # for mpiexec to exit when nothing runs on the nodes any more
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MARK = "DSLIDE_NETLAB_RUN"  # variable that marks the processes of a run


@dataclass(frozen=True)
class JobResult:
    """How a job ended, and its traffic."""

    code: int
    seconds: float
    traffic: tuple[Traffic, ...]
    launcher_hung: bool  # mpiexec still waited, as for a node that is cut off, when nothing ran on the nodes any more


def run(
    command: Sequence[str], ranks_per_node: int = 1, name: str = DEFAULT_NAME, limit: float | None = None,
    environment: Mapping[str, str] | None = None, stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
) -> JobResult:  # fmt: skip
    """Runs a command as an MPI job over all nodes of a lab, and forwards the signals that this process gets. After
    `limit` seconds, if given, the job is ended and LabError raised. `environment` is added to that of this process;
    `stdout` and `stderr` are as in `subprocess`."""
    if not command:
        raise ConfigError("no command to run; give it after --, as in dslide netlab run -- dslide train DATA")
    if ranks_per_node < 1:
        raise ConfigError(f"ranks-per-node: expected at least 1, not {ranks_per_node}")
    lab = find(name)
    mark = f"{_MARK}={name}-{os.getpid()}-{time.time_ns()}"
    # The commands installed with dslide are beside this Python; sudo may have removed that folder from PATH.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = os.environ | AS_ROOT | {"PATH": path, _MARK: mark.partition("=")[2]} | dict(environment or {})
    with _alone(lab):
        mpiexec, ranks = find_mpiexec(path), lab.nodes * ranks_per_node
        hosts = [Host(host, ranks_per_node) for host in lab.hosts]
        options = mpiexec.placement(hosts, ranks, str(lab.folder / "agent"))
        launch = [mpiexec.program, *options, "-n", str(ranks), *command]
        before, begin = traffic(lab), time.monotonic()
        # In a session of its own, so that Ctrl-C on the terminal reaches mpiexec once, forwarded from here.
        words = through_agent(lab.folder, lab.control, launch)
        process = subprocess.Popen(words, env=variables, stdout=stdout, stderr=stderr, start_new_session=True)
        try:
            with handling(_FORWARDED, lambda number, _: process.send_signal(number)):
                hung = _wait(process, lab, mark.encode(), limit)
        except subprocess.TimeoutExpired:
            raise LabError(f"{command[0]} did not end within {limit:g} s, and was ended") from None
        finally:
            process.terminate()  # which does nothing if it has exited
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()
            process.wait()
            end_processes([lab.control, *lab.hosts], mark.encode())
        seconds = time.monotonic() - begin
        pairs = zip(before, traffic(lab), strict=True)
        used = tuple(Traffic(a.node, b.sent - a.sent, b.received - a.received) for a, b in pairs)
    code = process.returncode
    return JobResult(128 - code if code < 0 else code, seconds, used, hung)  # a signal's code as shells have it


def enter(node: int, command: Sequence[str], name: str = DEFAULT_NAME) -> list[str]:
    """The command line that runs a command on a node, as it would run there under ssh."""
    lab = find(name)
    if not 0 <= node < lab.nodes:
        raise ConfigError(f"node: expected 0 to {lab.nodes - 1}, not {node}")
    return through_agent(lab.folder, lab.host(node), command)


def supervise(command: Sequence[str], name: str = DEFAULT_NAME) -> list[str]:
    """The command line that runs a command, like `dslide train --hosts FILE --elastic`, on the control namespace, from
    which it reaches the nodes as over ssh: those that are cut off don't answer."""
    lab = find(name)
    return through_agent(lab.folder, lab.control, ["env", f"{SHELL}={lab.folder / 'ssh'}", *command])


def _wait(process: subprocess.Popen[Any], lab: Lab, mark: bytes, limit: float | None) -> bool:
    """Waits for mpiexec to exit; True if it doesn't although the job's processes on the nodes have."""
    deadline = math.inf if limit is None else time.monotonic() + limit
    busy_at = math.inf  # when something was last seen to run on the nodes
    while True:
        try:
            process.wait(max(0.0, min(_POLL_SECONDS, deadline - time.monotonic())))
            return False
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if now >= deadline:
                raise
        if any_process(lab.hosts, mark):
            busy_at = now
        elif now - busy_at > _MPIEXEC_SECONDS:
            return True


@contextlib.contextmanager
def _alone(lab: Lab) -> Iterator[None]:
    """Locks the lab: the traffic of several runs at a time could not be told apart."""
    with open(lab.folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"another command runs in the lab {lab.name!r}; wait for it, or make another lab") from None
        yield
