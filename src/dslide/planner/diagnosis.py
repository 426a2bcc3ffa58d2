"""What `dslide doctor` finds out about a machine, or about the ranks of a job together."""

from __future__ import annotations

import platform
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dslide import _core
from dslide.comm import Communicator, ranks_in_words
from dslide.comm.topology import local_ranks
from dslide.config import Config
from dslide.errors import MemoryNeeded
from dslide.planner.memory import Plan
from dslide.planner.trial_rows import made_up
from dslide.planner.trial_steps import StepTime, time_step
from dslide.util.memory import available_bytes
from dslide.util.threads import available_cores, instruction_set
from dslide.util.units import format_bytes

# Facts that must be the same on all ranks, and the part of them that counts.
MUST_BE_SAME = {"dslide": r".*", "python": r"\d+\.\d+", "MPI": r".*"}


def machine_facts() -> dict[str, str]:
    """What to know about the machine, by name."""
    return {
        **_versions("numpy", "scipy", "scikit-learn"),
        "compiler": _core.compiler(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "instruction set": f"{instruction_set()} (of {', '.join(_core.isa_levels())})",
        "cores": str(available_cores()),
        "threads": str(_core.threads()),
        "free memory": format_bytes(available_bytes()),
        "mpi4py": installed("mpi4py"),
        "mpiexec": shutil.which("mpiexec") or shutil.which("mpirun") or "not found",
    }


def rank_facts() -> dict[str, Any]:
    """What to know about this rank, by name. Without threads, which depend on the ranks beside it."""
    from mpi4py import MPI

    return {
        "host": socket.gethostname(),
        "cores": available_cores(),
        "threads": "",
        "free memory": format_bytes(available_bytes()),
        **_versions("numpy", "mpi4py"),
        "instruction set": instruction_set(),
        "MPI": library_name(MPI.Get_library_version()),
    }


def find_differences(every: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Facts that must be the same on all ranks and are not, by name, each with a line that says which rank has what."""
    lines = {}
    for name, pattern in MUST_BE_SAME.items():
        holders: dict[str, list[int]] = {}
        for rank, facts in enumerate(every):
            match = re.match(pattern, facts[name])
            holders.setdefault(match[0] if match else facts[name], []).append(rank)
        if len(holders) > 1:
            each = [f"{value} on {ranks_in_words(ranks)}" for value, ranks in holders.items()]
            lines[name] = f"{name} is {', '.join(each)}"
    return lines


def memory_problem(comm: Communicator, planned: Plan) -> str:
    """Why some ranks have too little memory for a network; empty if all have enough. A collective of all ranks."""
    problem = ""
    try:
        planned.check(local_ranks(comm).ranks)
    except MemoryNeeded as error:
        problem = str(error)
    problems = {rank: text for rank, text in enumerate(comm.gather_objects("memory", problem)) if text}
    return f"{ranks_in_words(list(problems))}: {next(iter(problems.values()))}" if problems else ""


def computing_times(comm: Communicator, config: Config, shape: Mapping[str, int]) -> list[StepTime]:
    """A step on made-up rows of this shape, as each rank times it. A collective of all ranks."""
    own = time_step(config, made_up(config.batch_size, **shape), comm)
    return [StepTime(**given) for given in comm.gather_objects("step", vars(own))]


def library_name(text: str) -> str:
    """Name and version, from the version text of an MPI library."""
    words = re.sub(r"\bversion:|\blibrary\b|\(R\)", " ", text.split("\n")[0].split(",")[0], flags=re.IGNORECASE)
    match = re.match(r"\s*(\D*?)\s+v?(\d[\w.]*)", words)
    return f"{' '.join(match[1].split())} {match[2]}" if match else " ".join(words.split()) or "an MPI without name"


def _versions(*packages: str) -> dict[str, str]:
    found = {"dslide": version("dslide"), "python": platform.python_version()}
    return found | {package: installed(package) for package in packages}


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    text = ""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.processor() or "unknown"
