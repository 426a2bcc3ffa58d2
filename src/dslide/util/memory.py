"""Memory of this process: what is available, what is in use, and a check before large allocations."""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path

from dslide.errors import MemoryNeeded
from dslide.util.units import format_bytes


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """What this process can still allocate: the minimum over the limits of machine, container and process."""
    machine = _kilobytes(proc / "meminfo", "MemAvailable")
    if machine is None:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [machine, *_cgroup_bytes(proc, cgroup)]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft - _statm_bytes(proc, 0))
    return max(0, min(limits))


def rss_bytes(proc: Path = Path("/proc")) -> int:
    """Resident memory of this process now; 0 where the system does not report it."""
    return _statm_bytes(proc, 1)


def peak_rss_bytes(proc: Path = Path("/proc")) -> int:
    """The maximum of resident memory so far."""
    # VmHWM is of this program alone; ru_maxrss is inherited from the process that launched it.
    peak = _kilobytes(proc / "self/status", "VmHWM")
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def check_memory(needed: int, what: str, advice: str, processes: int = 1) -> None:
    """Raises MemoryNeeded if this process can't grow to `needed` bytes, what it holds already included. With several
    `processes` on this machine, each of them must be able to."""
    available = available_bytes() + processes * rss_bytes()
    if processes * needed > available:
        sizes = f"about {format_bytes(processes * needed)} but {format_bytes(available)} are available"
        raise MemoryNeeded(f"{what} needs {sizes}; {advice}")


def _cgroup_bytes(proc: Path, cgroup: Path) -> list[int]:
    """What is left of the memory limit of each control group around this process; versions 1 and 2."""
    left = []
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root, limit_name, usage_name, cache_name = cgroup, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit_name = cgroup / "memory", "memory.limit_in_bytes"
            usage_name, cache_name = "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        # A container may see its own group as the root of the tree although the path names it from outside.
        inner = Path(path.lstrip("/"))
        for group in {root, *(root / p for p in (inner, *inner.parents))}:
            limit, usage = _text(group / limit_name).strip(), _text(group / usage_name).strip()
            if limit.isdigit() and usage.isdigit():  # no limit: "max"
                stat = dict(line.split() for line in _text(group / "memory.stat").splitlines())
                left.append(int(limit) - int(usage) + int(stat.get(cache_name, 0)))  # page cache can be reclaimed
    return left


def _kilobytes(path: Path, key: str) -> int | None:
    """The value, in bytes, of a line like `MemAvailable:  123 kB`."""
    match = re.search(rf"^{key}:\s+(\d+) kB$", _text(path), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _statm_bytes(proc: Path, field: int) -> int:
    """A field of /proc/self/statm: 0 is the address space, 1 the resident part of it."""
    fields = _text(proc / "self/statm").split()
    return int(fields[field]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _text(path: Path) -> str:
    """The text of a small file; empty if it can't be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
