"""How MPI is asked to start ranks: host files, which mpiexec there is, and the flags of its kind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dslide.errors import ConfigError
from dslide.launch.remote_shell import SHELL

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_VERSION_SECONDS = 20.0
# What a launcher told this process would mislead the ranks that are started from it.
_OF_ANOTHER_JOB = ("PMI_", "PMIX_", "PALS_", "OMPI_COMM_WORLD_", "SLURM_")
_NEEDED_ELSEWHERE = re.compile(r"(DSLIDE|PYTHON|OMP)_?\w*|PATH|LD_LIBRARY_PATH")  # Open MPI passes nothing by itself
_EAGER_BYTES = "1048576"
_OPEN_MPI_TUNING = {  # without it, 1 MB all-gathers over a slow network take twice as long
    "OMPI_MCA_btl_tcp_eager_limit": _EAGER_BYTES,
    "OMPI_MCA_btl_tcp_rndv_eager_limit": _EAGER_BYTES,
    "OMPI_MCA_btl_tcp_max_send_size": _EAGER_BYTES,
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allgatherv_algorithm": "3",
}


@dataclass(frozen=True)
class Host:
    """A machine, and how many ranks it gets."""

    name: str
    ranks: int = 1


def read_hosts(path: str | Path) -> list[Host]:
    """The hosts in a file: one per line, `#` begins a comment, `ranks=2` may follow the name."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{path}: can't be read: {reason}") from None
    hosts: dict[str, tuple[int, Host]] = {}  # by name: line, host
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        place, name, ranks = f"{path}:{number}", words[0], 1
        if not _HOST.fullmatch(name):
            raise ConfigError(f"{place}: expected the name or IPv4 address of a host, not {name!r}")
        if name in hosts:
            raise ConfigError(
                f"{place}: {name} is in line {hosts[name][0]} already; for several ranks write {name} ranks=2"
            )
        for word in words[1:]:
            match = re.fullmatch(r"ranks=([1-9]\d{0,3})", word)
            if match is None:
                raise ConfigError(f"{place}: expected ranks=N, N from 1 to 9999, after {name}, not {word!r}")
            ranks = int(match[1])
        hosts[name] = number, Host(name, ranks)
    if not hosts:
        raise ConfigError(f"{path}: there are no hosts in it; expected one per line")
    return [host for _, host in hosts.values()]


def find_mpiexec() -> str:
    """The mpiexec beside this Python, where the wheels of PyPI put it, else the first on PATH."""
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None:
        raise ConfigError("to start several ranks, mpiexec is needed, and there is none; pip install 'dslide[mpi]'")
    return found


def start_command(
    ranks: int, hosts: Sequence[Host] = (), variables: Mapping[str, str] | None = None, address: str = "localhost"
) -> tuple[list[str], dict[str, str]]:
    """What to put before a command so that it runs as several ranks, and the environment for that: this process's, with
    `variables`. Without hosts, all ranks run on this machine; with them, they find this one at `address`."""
    program = find_mpiexec()
    version = _version(program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_ANOTHER_JOB)}
    environment.update(variables or {})
    places = ",".join(f"{host.name}:{host.ranks}" for host in hosts)
    count, shell = ["-n", str(ranks)], os.environ.get(SHELL)
    if "HYDRA" in version:
        # Its cleanup would kill all ranks when one has died, and nobody could tell which one it was; launch.py does it.
        where = ["-launcher", "fork", "-hosts", "localhost"]
        if hosts:
            where = ["-launcher", "ssh", *(["-launcher-exec", shell] if shell else []), "-hosts", places]
        where += ["-localhost", address if hosts else "localhost"]  # its name may mean nothing, or something else there
        return [program, *where, "-disable-auto-cleanup", "-bind-to", "none", *count], environment
    if "Intel" in version:
        environment["I_MPI_PIN"] = "off"
        where = ["-bootstrap", "fork"]
        if hosts:
            where = ["-bootstrap", "ssh", *(["-bootstrap-exec", shell] if shell else []), "-hosts", places]
        return [program, *where, *count], environment
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version:
        environment = {**_OPEN_MPI_TUNING, **environment}
        if os.geteuid() == 0:
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        where = ["--host", places or f"localhost:{ranks}"]
        if shell:
            four = any(f") {major}." in version for major in "1234")
            where += ["--mca", "plm_rsh_agent", shell] if four else ["--prtemca", "plm_ssh_agent", shell]
        passed_on = [word for name in environment if _NEEDED_ELSEWHERE.fullmatch(name) for word in ("-x", name)]
        return [program, *where, "--oversubscribe", "--bind-to", "none", *passed_on, *count], environment
    kind = version.strip().split("\n")[0][:80]
    raise ConfigError(
        f"{program}: neither MPICH's, Intel's nor Open MPI's mpiexec ({kind!r}), so its options are not known; start "
        f"the ranks by hand, without --ranks and --hosts"
    )


def _version(program: str) -> str:
    try:
        asked = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=_VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{program}: does not run: {error}") from None
    return asked.stdout + asked.stderr
