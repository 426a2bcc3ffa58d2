"""The machine: its hardware and software, its peak speeds, and the load of other programs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path

from dslide import _core
from dslide.util.memory import available_bytes
from dslide.util.threads import Speeds, available_cores, measure_speeds
from dslide.util.units import format_bytes


def facts() -> dict[str, str]:
    """Hardware and software, as text."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": processor(),
        "cores": str(available_cores()),
        "instruction set": f"{_core.isa()} (supported: {', '.join(_core.isa_levels())})",
        "memory": f"{format_bytes(total)}, of which {format_bytes(available_bytes())} were available",
        "system": platform.platform(),
        "compiler of the core": _core.compiler(),
        "software": ", ".join(_versions(["dslide", "numpy", "torch"])) + f", Python {platform.python_version()}",
    }


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()


class OtherLoad:
    """The share of the cores' time that other programs take, from its creation on. It slows systems most that wait for
    all of their threads."""

    def __init__(self, stat: Path = Path("/proc/stat")):
        self._stat, self._start = stat, time.perf_counter()
        self._before = self._seconds_of_others()

    def share(self) -> float | None:
        """The share so far, of other processes and of other virtual machines on the same cores; None if unknown."""
        now = self._seconds_of_others()
        if now is None or self._before is None:
            return None
        passed = (time.perf_counter() - self._start) * (os.cpu_count() or 1)
        return max(0.0, (now - self._before) / passed)

    def _seconds_of_others(self) -> float | None:
        try:
            user, nice, system, _, _, irq, softirq, steal = map(int, self._stat.read_text().split()[1:9])
        except (OSError, ValueError):
            return None
        ours = os.times()
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy - (ours.user + ours.system + ours.children_user + ours.children_system)


def peak_speeds(threads: int, least_gflops: float = 0.0) -> Speeds:
    """The peak speeds of so many threads: the best of several measurements, because threads may share a core during
    some of them. A peak below `least_gflops` is measured again, for some seconds at most."""
    each: list[Speeds] = []
    while len(each) < 3 or (best_of(each).gflops < least_gflops and len(each) < 20):
        each.append(measure_speeds(threads))
    return best_of(each)


def best_of(each: Sequence[Speeds]) -> Speeds:
    """The best of several measurements."""
    return Speeds(max(s.gflops for s in each), max(s.copy_gigabytes for s in each))


def _versions(packages: list[str]) -> list[str]:
    found = []
    for name in packages:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return found
