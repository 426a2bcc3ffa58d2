"""The launch agent of a lab: called like ssh, AGENT [OPTIONS] HOST COMMAND..., it runs the command on a node.

Each command gets the node's network and hostname, and a hosts file and shared memory of its own, else MPI would see
that all nodes are one machine. As ssh does, the agent joins the words of the command for a shell; other than with ssh,
the environment carries over.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

_SCRIPT = """#!/bin/sh
while true; do
    case "$1" in
        -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
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


def write_agent(folder: Path, name: str) -> None:
    """Puts the agent of the lab `name` into its folder."""
    path = folder / "agent"
    path.write_text(_SCRIPT.format(name=name, folder=folder))
    path.chmod(0o700)


def through_agent(folder: Path, host: str, command: Sequence[str]) -> list[str]:
    """The command line that runs a command, word for word, on a host of the lab; its process becomes the command."""
    return [str(folder / "agent"), host, "exec " + shlex.join(command)]
