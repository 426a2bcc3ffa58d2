"""Two programs of a lab that are called like ssh, PROGRAM [OPTIONS] HOST COMMAND..., and run the command on a node: the
launch agent, and the remote shell, which is called from the lab's control namespace and, like ssh, fails if no packets
pass to the node.

Each command gets the node's network and hostname, and a hosts file and shared memory of its own, else MPI would notice
that all nodes are one machine. Like ssh, the agent joins the words of the command for a shell; unlike with ssh, the
command inherits the environment.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

_SKIP_OPTIONS = """#!/bin/sh
while true; do
    case "$1" in
        -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
"""
_AGENT = """
case "$1" in
    {name}-node*|{name}-control) ;;
    *) echo "$1: no host of the lab {name}" >&2; exit 255 ;;
esac
exec ip netns exec "$1" unshare --uts --ipc --mount sh -c '
    echo "$1" > /proc/sys/kernel/hostname || exit 255
    mount -t tmpfs tmpfs /dev/shm || exit 255
    mount --bind {folder}/hosts /etc/hosts || exit 255
    shift
    exec sh -c "$*"' sh "$@"
"""
# Connects to a port at which nobody listens: a node that is reachable refuses. The command does not end with the
# shell's own process.
_SHELL = """
{python} -I -S -c '
import socket, sys
try:
    socket.create_connection((sys.argv[1], 22), timeout=2)
except ConnectionRefusedError:
    pass
except OSError as error:
    sys.exit(f"{{sys.argv[1]}}: {{error.strerror or error}}")' "$1" || exit 255
exec setsid --fork --wait {folder}/agent "$@"
"""


def write_programs(folder: Path, name: str) -> None:
    """Writes agent and remote shell of the lab `name` to its folder."""
    shell = _SHELL.format(python=shlex.quote(sys.executable), folder=folder)
    for path, text in ((folder / "agent", _AGENT.format(name=name, folder=folder)), (folder / "ssh", shell)):
        path.write_text(_SKIP_OPTIONS + text)
        path.chmod(0o700)


def through_agent(folder: Path, host: str, command: Sequence[str]) -> list[str]:
    """The command line that runs a command, word for word, on a host of the lab; its process becomes the command."""
    return [str(folder / "agent"), host, "exec " + shlex.join(command)]
