"""Asking hosts, over ssh or what stands for it, whether ranks can be started there."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from dslide.errors import ConfigError

SHELL = "DSLIDE_SSH"  # variable: the program to call like ssh, in its place
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")


def who_answers(hosts: Sequence[str], seconds: float) -> dict[str, str]:
    """For each host an empty text if Python finds dslide there within so many seconds, else what is wrong. All are
    asked at the same time; this machine, where no ssh is needed, always answers."""
    asked = {host: _ask(host) for host in hosts if not _is_here(host)}
    end = time.monotonic() + seconds
    answers = dict.fromkeys(hosts, "")
    for host, (process, said) in asked.items():
        with said:
            try:
                code = process.wait(max(0.01, end - time.monotonic()))
                said.seek(0)
                lines = said.read().decode(errors="replace").split("\n")
                answers[host] = "" if code == 0 else next((line.strip() for line in lines if line.strip()), "no reason")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                answers[host] = f"no answer within {seconds:g} s"
    return answers


def _ask(host: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    # Not a pipe, whose end a connection that ssh keeps open would hold back.
    said = tempfile.TemporaryFile()  # noqa: SIM115
    shell = os.environ.get(SHELL, "ssh")
    command = [shell, *_OPTIONS, host, shlex.join([sys.executable, "-c", "import dslide.errors"])]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
    except OSError as error:
        raise ConfigError(f"{shell}: can't be run, so hosts can't be reached: {error.strerror}") from None
    return process, said


def _is_here(host: str) -> bool:
    """Whether a host is this machine: the way there begins where it ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((host, 9))  # sends nothing
            return bool(way.getsockname()[0] == way.getpeername()[0])
        except OSError:
            return False
