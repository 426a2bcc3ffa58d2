"""The processes that a launcher starts: an agent on each host, over ssh, for ranks that use MPICH; mpiexec for those of
another MPI, which has a protocol of its own."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dslide.comm import liveness
from dslide.errors import CommError
from dslide.launch.agent import Order, write_files
from dslide.launch.mpiexec import Dialect, Host, find_mpiexec, of_another_job, own_variables, start_command
from dslide.launch.protocol import LAUNCHER
from dslide.launch.remote_shell import is_this_machine, shell_command, start

_AGENT = [sys.executable, "-m", "dslide.launch.agent"]
# An order has to fit into a pipe, since the launcher does not wait for an agent to read it.
_LEAST_PIPE_BYTES, _PIPE_BYTES = 1 << 15, 1 << 20
# For ranks on one machine: MPI opens no ports. The first is of UCX, the second of libfabric; MPICH has one of them.
_SHARED_MEMORY_ONLY = {"UCX_TLS": "shm,self", "FI_PROVIDER": "shm"}


@dataclass(frozen=True, eq=False)
class Process:
    """A process that the launcher has started; `ranks` are those of an agent."""

    popen: subprocess.Popen[bytes]
    ranks: tuple[int, ...] = ()

    def send(self, line: bytes) -> None:
        """Sends an agent a line. If it does not read, its ranks wait in vain: there are limits for that."""
        if self.popen.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # ValueError: closed
                os.write(self.popen.stdin.fileno(), line)

    def stop(self) -> None:
        """Asks it to end its ranks."""
        if self.popen.stdin is not None:
            with contextlib.suppress(OSError):
                self.popen.stdin.close()
        elif self.popen.poll() is None:
            self.popen.terminate()

    def kill(self) -> None:
        """Kills it, if it still runs, and on this machine what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@contextlib.contextmanager
def started(
    command: Sequence[str], ranks: int, hosts: Sequence[Host], launcher: str, store: str, variables: Mapping[str, str]
) -> Iterator[list[Process]]:
    """Starts a command as several ranks; kills what is left in the end. `launcher` is the address of the launcher, with
    the secret, `store` the name of the one that PMI has; `variables` are added to the environment."""
    processes: list[Process] = []
    try:
        if (ranks == 1 and not hosts) or find_mpiexec().dialect is Dialect.MPICH:
            _start_agents(processes, command, ranks, hosts, launcher, store, variables)
        else:
            _start_mpiexec(processes, command, ranks, hosts, launcher, variables)
        yield processes
    finally:
        for process in processes:
            process.kill()


def _start_agents(
    processes: list[Process], command: Sequence[str], ranks: int, hosts: Sequence[Host], launcher: str,
    store: str, variables: Mapping[str, str],
) -> None:  # fmt: skip
    first = 0
    for node, host in enumerate(hosts or [Host("", ranks)]):
        own = tuple(range(first, first + host.ranks))
        first += host.ranks
        more = {**own_variables(), **variables} if hosts else {**_SHARED_MEMORY_ONLY, **variables}
        order = Order(launcher, list(own), node, ranks, store, list(command), os.getcwd(), more, [])
        processes.append(Process(_agent(host.name, order), own))


def _start_mpiexec(
    processes: list[Process], command: Sequence[str], ranks: int, hosts: Sequence[Host], launcher: str,
    variables: Mapping[str, str],
) -> None:  # fmt: skip
    place = str(Path(tempfile.gettempdir()) / f"dslide-{secrets.token_hex(8)}")
    _deliver(place, ranks, hosts, launcher)
    words, environment = start_command(ranks, hosts, {**variables, LAUNCHER: place})
    popen = subprocess.Popen(
        [*words, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        start_new_session=True,
    )  # fmt: skip
    processes.append(Process(popen))


def _agent(host: str, order: Order) -> subprocess.Popen[bytes]:
    """Starts an agent on a host, and here for an empty name. In a session of its own: Ctrl-C on the terminal is for
    this process alone."""
    here = not host or is_this_machine(host)
    environment = {name: value for name, value in os.environ.items() if not of_another_job(name)} if here else None
    pipe = subprocess.PIPE
    command = _AGENT if here else shell_command(host, shlex.join(_AGENT))
    popen = start(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True)
    try:
        _send_order(popen, json.dumps(asdict(order)).encode() + b"\n")
    except BaseException:
        Process(popen).kill()
        raise
    return popen


def _send_order(popen: subprocess.Popen[bytes], line: bytes) -> None:
    """Sends an agent its order without waiting for it to read."""
    assert popen.stdin is not None
    os.set_blocking(popen.stdin.fileno(), False)
    if len(line) > _LEAST_PIPE_BYTES:
        fcntl.fcntl(popen.stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    with contextlib.suppress(BrokenPipeError):  # it has ended, and its stderr says why
        if os.write(popen.stdin.fileno(), line) < len(line):
            raise OSError(errno.E2BIG, f"the command line and its variables, {len(line):,} bytes, are too long for ssh")


def _deliver(place: str, ranks: int, hosts: Sequence[Host], launcher: str) -> None:
    """Writes the launcher's address to the files of all ranks, each on its host."""
    files = [f"{place}-{rank}" for rank in range(ranks)]
    if not hosts:
        write_files(files, launcher)
        return
    agents: dict[str, subprocess.Popen[bytes]] = {}
    try:
        first = 0
        for host in hosts:
            own = files[first : first + host.ranks]
            first += host.ranks
            agents[host.name] = _agent(host.name, Order(launcher, [], 0, ranks, "", [], "", {}, own))
        end = time.monotonic() + liveness.DELIVERY
        for name, popen in agents.items():
            _, printed = popen.communicate(timeout=max(0.01, end - time.monotonic()))
            if popen.returncode:
                reason = printed.decode(errors="replace").strip().partition("\n")[0] or "no reason given"
                raise CommError(f"{name}: ranks can't be started there: {reason}")
    except subprocess.TimeoutExpired:
        raise CommError(f"{name}: no answer within {liveness.DELIVERY:g} s, so ranks can't be started there") from None
    finally:
        for popen in agents.values():
            Process(popen).kill()
