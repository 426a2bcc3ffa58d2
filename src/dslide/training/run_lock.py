"""The lock of a run, RUN/lock: while a process trains a run, no other one does.

The file says which process has it: host, process id, and when the process and its machine were started, so that neither
another machine nor a process that got the same id later is taken for it. The holder touches the file every `BEAT`
seconds. A lock is stale, and is taken over, if its process is gone; where that can't be seen, because it ran on another
machine that shares the disk, if it was not touched for `STALE` seconds; or if an elastic run is its own predecessor.
Ranks of one training have one lock, that of rank 0.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dslide.errors import ConfigError, ModelError, raised_as
from dslide.util.json_files import strict_json
from dslide.util.plain import open_to_append, read_plain

NAME = "lock"
ELASTIC_JOB = "DSLIDE_ELASTIC_JOB"  # variable with a random name of an elastic run, the same for all its starts
BEAT, STALE = 10.0, 60.0  # seconds
LONGEST_WAIT = STALE + BEAT
LONGEST = 4096  # bytes
_TAKING = 5.0  # seconds that another process may take to look at a lock
_POLL = 0.2


class NoLock:
    """What the other ranks have."""

    def check(self) -> None:
        """Rank 0 does it."""

    def release(self) -> None:
        """Rank 0 does it."""


class RunLock:
    """The lock of a run's folder, which exists, held from the start until `release`. ConfigError if another process has
    it, and still has it after `wait` seconds."""

    def __init__(self, run: Path, wait: float = 0.0) -> None:
        self._path = run / NAME
        self._own = json.dumps(_this_process()).encode() + b"\n"
        self._released = threading.Event()
        end = time.monotonic() + wait
        with raised_as(ConfigError, f"{self._path}: can't be written", OSError):
            while (holder := self._take()) is not None:
                if time.monotonic() > end:
                    raise ConfigError(f"{run}: {holder} trains this run; wait until it ends, or end it")
                time.sleep(_POLL)
        threading.Thread(target=self._keep, name="dslide-lock", daemon=True).start()

    def check(self) -> None:
        """ModelError if another process has taken the lock, since this one gave no sign of life."""
        with raised_as(ModelError, f"{self._path}: the run's lock is lost", ConfigError):
            content = read_plain(self._path, ConfigError, LONGEST)
        if content != self._own:
            raise ModelError(f"{self._path}: {_in_words(_parsed(content))} has taken over the run")

    def release(self) -> None:
        """Gives the lock to whoever wants it; nothing if it is not held any more."""
        if not self._released.is_set():
            self._released.set()
            with contextlib.suppress(OSError, ConfigError), self._opened() as handle:
                if _content(handle) == self._own:
                    os.unlink(self._path)

    def _keep(self) -> None:
        """The thread that touches the file."""
        while not self._released.wait(BEAT):
            with contextlib.suppress(OSError, ConfigError), self._opened() as handle:
                if _content(handle) == self._own and not self._released.is_set():
                    os.utime(handle)

    def _take(self) -> str | None:
        """Takes the lock, or says who has it."""
        with self._opened() as handle:
            content, touched = _content(handle), os.fstat(handle).st_mtime
            if content:
                holder = _parsed(content)
                age = self._age(touched)
                if not _is_stale(holder, age):
                    return _in_words(holder) + ("" if _is_here(holder) else f", last seen {max(age, 0):.0f} s ago,")
            try:
                os.ftruncate(handle, 0)
                if os.write(handle, self._own) < len(self._own):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
            except BaseException:
                os.ftruncate(handle, 0)  # nobody has it
                raise
        return None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The file, which nobody else reads or writes meanwhile, on disks that can do this."""
        end = time.monotonic() + _TAKING
        while True:
            with open_to_append(self._path, ConfigError) as file:
                handle = file.fileno()
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise ConfigError(f"{self._path}: another process keeps it locked") from None
                    time.sleep(_POLL / 10)
                    continue
                except OSError:
                    pass  # a disk without such locks: the content has to do
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.lstat(self._path), os.fstat(handle)):  # else it was removed meanwhile
                        yield handle
                        return

    def _age(self, touched: float) -> float:
        """Seconds since a time, by the clock of the disk."""
        probe = self._path.with_name(f".{NAME}.{secrets.token_hex(4)}.partial")
        handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            return os.fstat(handle).st_mtime - touched
        finally:
            os.close(handle)
            os.unlink(probe)


def _content(handle: int) -> bytes:
    return os.pread(handle, LONGEST, 0)


def _parsed(content: bytes) -> dict[str, Any]:
    """What a lock says; empty if it is damaged: a crash may leave one that is empty."""
    with contextlib.suppress(ValueError, RecursionError):
        values = strict_json(content)
        kinds = {"host": str, "process": int, "started": str, "machine": str, "job": str}
        if isinstance(values, dict) and all(type(values.get(key)) is kind for key, kind in kinds.items()):
            return values
    return {}


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "host": socket.gethostname(), "process": pid, "started": _started(pid) or "", "machine": _machine(),
        "job": os.environ.get(ELASTIC_JOB, ""), "time": round(time.time()),
    }  # fmt: skip


def _is_here(holder: dict[str, Any]) -> bool:
    return bool(holder.get("machine") == _machine())


def _is_stale(holder: dict[str, Any], age: float) -> bool:
    if holder and _is_here(holder):
        return bool(_started(holder["process"]) != holder["started"])
    if holder and holder["job"] and holder["job"] == os.environ.get(ELASTIC_JOB):
        return True  # the launcher has ended the ranks that trained before
    return abs(age) > STALE


def _in_words(holder: dict[str, Any]) -> str:
    if not holder:
        return "an unknown process"
    own = _this_process()
    if all(holder[key] == own[key] for key in ("machine", "process", "started")):
        return "this process"
    return f"process {holder['process']} on {holder['host']}"


def _machine() -> str:
    """What processes that see each other's ids have in common."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return socket.gethostname()


def _started(pid: int) -> str | None:
    """When a process was started; None if there is none of this id."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] == b"Z" else fields[19].decode()  # a zombie has ended
    except (OSError, IndexError):
        pass
    if os.path.exists("/proc/self/stat"):
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except (OSError, OverflowError):
        pass
    return ""
