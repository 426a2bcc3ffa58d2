"""dslide doctor: what this machine offers, for bug reports and before long runs."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..memory import available_bytes, format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def run(arguments: argparse.Namespace) -> int:
    for name, value in facts().items():
        print(f"{name:<18}{value}")
    return 0


def facts() -> dict[str, str]:
    """What to know about the machine, by name."""
    from .. import _core
    from ..threads import available_cores, instruction_set

    launcher = shutil.which("mpiexec") or shutil.which("mpirun")
    return {
        "dslide": version("dslide"),
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "scipy": _version("scipy"),
        "scikit-learn": _version("scikit-learn"),
        "compiler": _core.compiler(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "instruction set": f"{instruction_set()} (of {', '.join(_core.isa_levels())})",
        "cores": str(available_cores()),
        "threads": str(_core.threads()),
        "free memory": format_bytes(available_bytes()),
        "mpi4py": _version("mpi4py") if importlib.util.find_spec("mpi4py") else "not installed",
        "mpiexec": launcher or "not found",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.processor() or "unknown"
