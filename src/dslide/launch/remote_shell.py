"""Whether ranks can be started on hosts, over ssh or a replacement for it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from dslide.errors import ConfigError
from dslide.util.addresses import route_to

SHELL = "DSLIDE_SSH"  # variable: a program to call in place of ssh, with the same arguments
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")


def who_answers(hosts: Sequence[str], seconds: float) -> dict[str, str]:
    """For each host an empty text if Python finds dslide there within so many seconds, else the error. All are probed
    at the same time; this machine, where no ssh is needed, always answers."""
    answers, probes = dict.fromkeys(hosts, ""), {}
    for host in hosts:
        try:
            if not is_this_machine(host):
                probes[host] = _probe(host)
        except OSError as error:
            answers[host] = f"ssh can't be started: {error.strerror}"
    end = time.monotonic() + seconds
    for host, (process, printed) in probes.items():
        with printed:
            try:
                code = process.wait(max(0.01, end - time.monotonic()))
                printed.seek(0)
                line = printed.read().decode(errors="replace").strip().partition("\n")[0].strip()
                answers[host] = "" if code == 0 else line or "no reason"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                answers[host] = f"no answer within {seconds:g} s"
    return answers


def is_this_machine(host: str) -> bool:
    """Whether the name is one of this machine, where no ssh is needed."""
    route = route_to(host)
    return route is not None and route[0] == route[1]


def _probe(host: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    # A file, not a pipe: a connection that ssh keeps open would keep the pipe open too.
    printed = tempfile.TemporaryFile()  # noqa: SIM115
    command = shell_command(host, shlex.join([sys.executable, "-c", "import dslide.errors"]))
    null = subprocess.DEVNULL
    return start(command, stdin=null, stdout=printed, stderr=printed, start_new_session=True), printed


def shell_command(host: str, command: str) -> list[str]:
    """The words that run a command on a host."""
    return [os.environ.get(SHELL, "ssh"), "-x", *_OPTIONS, host, command]


def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts the remote shell; ConfigError if there is none, OSError if this machine lacks something for it."""
    try:
        return subprocess.Popen(command, **options)
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(f"{command[0]}: can't be run, so hosts can't be reached: {error.strerror}") from None
