"""dslide doctor: what this machine offers, for bug reports and before long runs. With several ranks: what each of them
has, how fast they reach each other, and how fast a network will train on them."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dslide.cli.options import add_config_options, given, whole_number
from dslide.cli.ranks import add_rank_options
from dslide.comm import job
from dslide.config import Config
from dslide.errors import ConfigError
from dslide.util.memory import available_bytes
from dslide.util.units import format_bytes

EXAMPLE = {"features": 135_909, "labels": 670_091}  # of Amazon-670K
PER_ROW = {"features_per_row": 75, "labels_per_row": 5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the network to time on several ranks")
    for name, default in (EXAMPLE | PER_ROW).items():
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=whole_number,
            default=argparse.SUPPRESS,
            metavar="N",
            help=f"{name.replace('_', ' ')} of the data (default: {default}{', as Amazon-670K' * (name in EXAMPLE)})",
        )
    add_config_options(parser)
    add_rank_options(parser)


def run(arguments: argparse.Namespace) -> int:
    options = given(arguments, Config)
    config = Config(**options)
    shape = {name: getattr(arguments, name) for name in EXAMPLE | PER_ROW if hasattr(arguments, name)}
    _check(shape)
    comm = job(config.watchdog)
    if comm.size > 1:
        from dslide.cli.doctor_ranks import examine

        examine(comm, config, EXAMPLE | PER_ROW | shape, is_example="labels" not in shape)
        return 0
    for name in options | shape:
        raise ConfigError(f"{name}: of use with several ranks; on one machine `dslide plan` times a network")
    for name, value in facts().items():
        print(f"{name:<18}{value}")
    return 0


def facts() -> dict[str, str]:
    """What to know about the machine, by name."""
    from dslide import _core
    from dslide.util.threads import available_cores, instruction_set

    launcher = shutil.which("mpiexec") or shutil.which("mpirun")
    return {
        "dslide": version("dslide"),
        "python": platform.python_version(),
        "numpy": installed("numpy"),
        "scipy": installed("scipy"),
        "scikit-learn": installed("scikit-learn"),
        "compiler": _core.compiler(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "instruction set": f"{instruction_set()} (of {', '.join(_core.isa_levels())})",
        "cores": str(available_cores()),
        "threads": str(_core.threads()),
        "free memory": format_bytes(available_bytes()),
        "mpi4py": installed("mpi4py") if importlib.util.find_spec("mpi4py") else "not installed",
        "mpiexec": launcher or "not found",
    }


def _check(shape: dict[str, int]) -> None:
    if ("features" in shape) != ("labels" in shape):
        raise ConfigError("--features and --labels: give both, or none for those of Amazon-670K")
    for name, value in shape.items():
        if value < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: expected at least 1, not {value}")


def installed(package: str) -> str:
    """A package's version."""
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
