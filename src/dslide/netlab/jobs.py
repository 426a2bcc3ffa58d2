"""MPI jobs in a lab: one or more ranks on each node, launched from the lab's control namespace."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
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

_LOOK = 0.5  # seconds between looks at the nodes
_PATIENCE = 5.0  # seconds in which a job that was told to end must do so
_LAUNCHER_SECONDS = 5.0  # in which the launcher must notice that nothing runs on the nodes any more
_MARK = "DSLIDE_NETLAB_RUN"  # variable by which the processes of a run are known


@dataclass(frozen=True)
class RunResult:
    """How a job ended, and what went over the wire meanwhile."""

    code: int
    seconds: float
    traffic: tuple[Traffic, ...]
    launcher_hung: bool  # it still waited, as for a node that is cut off, when nothing ran on the nodes any more


def run(
    command: Sequence[str],
    ranks_per_node: int = 1,
    name: str = DEFAULT_NAME,
    limit: float | None = None,
    environment: Mapping[str, str] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
) -> RunResult:
    """Runs a command as an MPI job over all nodes of a lab, and passes on the signals that this process gets.

    After `limit` seconds, if given, the job is ended and LabError raised. `environment` is added to that of this
    process; `stdout` and `stderr` are as in `subprocess`.
    """
    if not command:
        raise ConfigError("no command to run; give it after --, as in dslide netlab run -- dslide train DATA")
    if ranks_per_node < 1:
        raise ConfigError(f"ranks-per-node: expected at least 1, not {ranks_per_node}")
    lab = find(name)
    mark = f"{_MARK}={name}-{os.getpid()}-{time.time_ns()}"
    # Beside this Python are the commands that were installed with dslide; sudo may have taken them off the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = os.environ | AS_ROOT | {"PATH": path, _MARK: mark.partition("=")[2]} | dict(environment or {})
    with _alone(lab):
        launch = [*_mpiexec(lab, ranks_per_node, path), *command]
        before, begin = traffic(lab), time.monotonic()
        # In a session of its own, so that the terminal's Ctrl-C comes once, from here, and in the launcher's way.
        process = subprocess.Popen(
            through_agent(lab.folder, lab.control, launch),
            env=variables,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            with _passing_signals(process):
                hung = _wait(process, lab, mark.encode(), limit)
        except subprocess.TimeoutExpired:
            raise LabError(f"{command[0]} did not end within {limit:g} s, and was ended") from None
        finally:
            _end(process)
            end_processes([lab.control, *lab.hosts], mark.encode())
        seconds = time.monotonic() - begin
        used = tuple(
            Traffic(a.node, b.sent - a.sent, b.received - a.received) for a, b in zip(before, traffic(lab), strict=True)
        )
    code = process.returncode
    return RunResult(128 - code if code < 0 else code, seconds, used, hung)  # a signal's code as shells have it


def enter(node: int, command: Sequence[str], name: str = DEFAULT_NAME) -> list[str]:
    """The command line that runs a command on a node, as it would run there under ssh."""
    lab = find(name)
    if not 0 <= node < lab.nodes:
        raise ConfigError(f"node: expected 0 to {lab.nodes - 1}, not {node}")
    return through_agent(lab.folder, lab.host(node), command)


def supervise(command: Sequence[str], name: str = DEFAULT_NAME) -> list[str]:
    """The command line that runs a command, like `dslide train --hosts FILE --elastic`, beside the nodes, which it can
    reach as over ssh: those that are cut off don't answer."""
    lab = find(name)
    return through_agent(lab.folder, lab.control, ["env", f"{SHELL}={lab.folder / 'ssh'}", *command])


def _mpiexec(lab: Lab, ranks_per_node: int, path: str) -> list[str]:
    """mpiexec with its options, up to the command."""
    mpiexec, ranks = find_mpiexec(path), lab.nodes * ranks_per_node
    hosts = [Host(host, ranks_per_node) for host in lab.hosts]
    return [mpiexec.program, *mpiexec.placement(hosts, ranks, str(lab.folder / "agent")), "-n", str(ranks)]


def _wait(process: subprocess.Popen[Any], lab: Lab, mark: bytes, limit: float | None) -> bool:
    """Waits for the launcher to end; True if it doesn't although the job's processes on the nodes have ended."""
    deadline = None if limit is None else time.monotonic() + limit
    empty_since: float | None = None  # since when nothing runs on the nodes
    launched = False
    while True:
        try:
            process.wait(_LOOK if deadline is None else max(0.0, min(_LOOK, deadline - time.monotonic())))
            return False
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise
        if any_process(lab.hosts, mark):
            launched, empty_since = True, None
        elif launched:
            empty_since = empty_since or now
            if now - empty_since > _LAUNCHER_SECONDS:
                return True


@contextlib.contextmanager
def _alone(lab: Lab) -> Iterator[None]:
    """One run at a time in a lab, else bytes could not be told apart."""
    with open(lab.folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"another command runs in the lab {lab.name!r}; wait for it, or make another lab") from None
        yield


@contextlib.contextmanager
def _passing_signals(process: subprocess.Popen[Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield
        return
    before = {
        number: signal.signal(number, lambda number, _: process.send_signal(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
