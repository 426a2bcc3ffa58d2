"""What a lab needs of the system: commands of iproute2, namespaces, and the processes in them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from dslide.errors import UserError

Identity = tuple[int, int]  # device and inode of a namespace
NAMESPACES = Path("/run/netns")  # where iproute2 keeps them
_COMMANDS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "mount": "mount"}  # and their packages
_COMMAND_SECONDS = 30.0
_MISSING = (
    ("qdisc kind is unknown", "no token bucket filter (tbf); load it with `modprobe sch_tbf`"),
    ("Unknown device type", "no veth or bridge devices; load them with `modprobe veth` and `modprobe bridge`"),
)


class LabError(UserError):
    """Something that a lab needs is missing on this system, or the lab is in the wrong state."""


def check_system() -> None:
    """LabError if something is missing that every action needs."""
    if sys.platform != "linux":
        raise LabError("dslide netlab needs network namespaces, which only Linux has")
    if os.geteuid() != 0:
        hint = 'try sudo "$(command -v dslide)" netlab ...'
        raise LabError(f"dslide netlab needs root, to make network namespaces; {hint}")
    for kind in ("net", "uts", "ipc", "mnt"):
        if not Path(f"/proc/self/ns/{kind}").exists():
            raise LabError(f"this kernel has no {kind} namespaces, which dslide netlab needs; use another kernel")
    for name, package in _COMMANDS.items():
        if shutil.which(name) is None:
            raise LabError(f"the command `{name}` is missing; install the package {package}")


def call(*command: str) -> str:
    """The output of a command; LabError with its error message."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(command)}` did not end within {_COMMAND_SECONDS:g} s") from None
    if done.returncode == 0:
        return done.stdout
    for sign, missing in _MISSING:
        if sign in done.stderr:
            raise LabError(f"this kernel has {missing}")
    hint = "; in a container, start it with more rights (privileged)" if "not permitted" in done.stderr else ""
    raise LabError(f"`{' '.join(command)}` failed: {' '.join(done.stderr.split()) or 'no reason given'}{hint}")


def start_relay(latency: float, switch: str, nodes: Sequence[str]) -> None:
    """Starts the program that carries packets with a latency (relay.py), and with it the devices of all links. It ends
    with the other processes in the switch's namespace."""
    if not Path("/dev/net/tun").exists():
        raise LabError("there is no /dev/net/tun, which latency needs; load it with `modprobe tun`")
    program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("relay.py")), str(latency), switch, *nodes]
    relay = subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert relay.stdout is not None
    assert relay.stderr is not None
    with relay.stdout, relay.stderr:
        if select.select([relay.stdout], [], [], _COMMAND_SECONDS)[0] and relay.stdout.readline():
            return
        relay.kill()
        reason = relay.stderr.read().strip().splitlines()
    raise LabError(f"links with latency can't be made: {reason[-1] if reason else 'the relay did not start'}")


def any_process(namespaces: Iterable[str], mark: bytes) -> bool:
    """Whether a process with `mark` in its environment runs in these network namespaces."""
    return bool(_processes(_identities(namespaces), mark))


def end_processes(namespaces: Iterable[str], mark: bytes = b"") -> int:
    """Ends the processes in these network namespaces that have `mark` in their environment, if need be with SIGKILL;
    how many there were."""
    inside = _identities(namespaces)
    ended: set[int] = set()
    for number, seconds in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + seconds
        asked: set[int] = set()
        while found := _processes(inside, mark):
            for pid in found - asked:
                _signal(pid, number, inside)
            asked |= found
            ended |= found
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
    if found:
        raise LabError(f"process {min(found)} of the lab did not end on SIGKILL within {seconds:g} s")
    return len(ended)


def _processes(inside: set[Identity], mark: bytes) -> set[int]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    found = {pid for pid in pids if _identity(f"/proc/{pid}/ns/net") in inside and mark in _environment(pid)}
    return found - {os.getpid()}


def _signal(pid: int, number: signal.Signals, inside: set[Identity]) -> None:
    """Signals a process if it is still in these namespaces: another one may have its id by now."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if _identity(f"/proc/{pid}/ns/net") in inside:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _identities(namespaces: Iterable[str]) -> set[Identity]:
    return {identity for name in namespaces if (identity := _identity(NAMESPACES / name)) is not None}


def _identity(path: str | Path) -> Identity | None:
    """The identity of a namespace; None if it is gone, or belongs to a dead process."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


def _environment(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""
