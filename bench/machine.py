"""What the machine is, and what it can do at best."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
from pathlib import Path

from dslide import _core
from dslide.memory import available_bytes, format_bytes
from dslide.threads import available_cores

from .plan import Plan
from .report import Figure, Section
from .runs import System


def facts() -> dict[str, str]:
    """The machine and the software, in words."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": processor(),
        "cores": str(available_cores()),
        "instruction set": f"{_core.isa()} (here: {', '.join(_core.isa_levels())})",
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


class Disturbance:
    """How much of the cores' time others take, from when this is made: it slows systems that wait for threads most."""

    def __init__(self, stat: Path = Path("/proc/stat")):
        self._stat, self._start = stat, time.perf_counter()
        self._before = self._seconds_of_others()

    def share(self) -> float | None:
        """The share since then, of other processes and of other machines on the same cores; None if not known."""
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


def section(plan: Plan) -> Section:
    """Facts, and peaks measured in every round."""
    systems = [_peaks(1)] + ([_peaks(plan.threads)] if plan.threads > 1 else [])
    return Section(
        "Machine",
        "\n".join(f"- {name}: {value}" for name, value in facts().items())
        + "\n\nThe best of short trials in each round; multiply-adds of 32-bit floats count as two operations, a copy "
        "as bytes read and bytes written.",
        systems,
        [Figure("gflops", "GFLOP/s"), Figure("copy_gigabytes", "copy, GB/s", ",.1f")],
    )


def _peaks(threads: int) -> System:
    return System(f"{threads} thread{'s' * (threads > 1)}", f"{__name__}:measure", {"threads": threads}, limit=60)


def measure(threads: int, seed: int) -> dict[str, float]:
    """What so many threads do at best."""
    from .quiet import measured

    return vars(measured(threads))


def _versions(packages: list[str]) -> list[str]:
    found = []
    for name in packages:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return found
