"""Host files, and mpiexec: which one there is, how it starts ranks, and what it passes on to them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dslide.errors import ConfigError
from dslide.launch.remote_shell import SHELL

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Variables of the launcher that started this process would mislead the ranks started from it.
_OF_ANOTHER_JOB = ("PMI_", "PMIX_", "PALS_", "OMPI_COMM_WORLD_", "SLURM_")
# Variables of this process that ranks on other hosts get, and no others: any may hold a secret.
_FORWARDED = re.compile(
    r"(DSLIDE|OMP|MKL|OPENBLAS|MALLOC|UCX|FI|MPICH|MPIR_CVAR|I_MPI|OMPI_MCA|PRTE_MCA|LC)_\w+"
    r"|PYTHON(PATH|HOME|UNBUFFERED|HASHSEED|WARNINGS|NOUSERSITE|FAULTHANDLER)|PATH|LD_LIBRARY_PATH|LANG|TZ"
)
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # else Open MPI refuses root
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
    """The hosts in a file: one per line, `#` begins a comment, `ranks=2` may follow the name, or `slots=2` as in files
    for Open MPI."""
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
            hint = f"for several ranks write {name} ranks=2"
            raise ConfigError(f"{place}: {name} is in line {hosts[name][0]} already; {hint}")
        for word in words[1:]:
            match = re.fullmatch(r"(?:ranks|slots)=([1-9]\d{0,3})", word)
            if match is None:
                raise ConfigError(f"{place}: expected ranks=N, N from 1 to 9999, after {name}, not {word!r}")
            ranks = int(match[1])
        hosts[name] = number, Host(name, ranks)
    if not hosts:
        raise ConfigError(f"{path}: there are no hosts in it; expected one per line")
    return [host for _, host in hosts.values()]


class Dialect(Enum):
    """Whose mpiexec it is, with the option that names a replacement for ssh."""

    MPICH = ("-launcher-exec",)
    INTEL = ("-bootstrap-exec",)
    OPEN_MPI_4 = ("--mca", "plm_rsh_agent")  # and before
    OPEN_MPI_5 = ("--prtemca", "plm_ssh_agent")


@dataclass(frozen=True)
class Mpiexec:
    """An mpiexec, and its dialect."""

    program: str
    dialect: Dialect

    def placement(self, hosts: Sequence[Host], ranks: int, shell: str | None) -> list[str]:
        """The options that start ranks on hosts, by `shell` in place of ssh if given; without hosts, on this one."""
        places = ",".join(f"{host.name}:{host.ranks}" for host in hosts)
        agent = [*self.dialect.value, shell] if shell else []
        if self.dialect in (Dialect.OPEN_MPI_4, Dialect.OPEN_MPI_5):
            return ["--host", places or f"localhost:{ranks}", *agent]
        option = "-launcher" if self.dialect is Dialect.MPICH else "-bootstrap"
        if hosts:
            return [option, "ssh", *agent, "-hosts", places]
        return [option, "fork", *(["-hosts", "localhost"] if self.dialect is Dialect.MPICH else [])]


def find_mpiexec(search: str | None = None) -> Mpiexec:
    """The mpiexec in the folders `search`, like a PATH; else the one beside this Python, where the wheels of PyPI put
    it, or the first on PATH."""
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    found = shutil.which("mpiexec", path=search)
    if search is None and os.access(beside, os.X_OK):
        found = str(beside)
    if found is None:
        raise ConfigError("to start several ranks, mpiexec is needed, and there is none; pip install 'dslide[mpi]'")
    return Mpiexec(found, _dialect(found))


def of_another_job(name: str) -> bool:
    """Whether a variable was set by the launcher of another job, which has started this process."""
    return name.startswith(_OF_ANOTHER_JOB)


def own_variables() -> dict[str, str]:
    """The variables of this process that ranks on other hosts get."""
    return {name: value for name, value in os.environ.items() if _FORWARDED.fullmatch(name)}


def start_command(ranks: int, hosts: Sequence[Host], variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The words to put before a command so that mpiexec, one that is not MPICH's, runs it as several ranks, and the
    environment: this process's, with `variables`; ranks on hosts get what `own_variables` allows."""
    mpiexec = find_mpiexec()
    environment = {name: value for name, value in os.environ.items() if not of_another_job(name)}
    environment.update(variables)
    options = mpiexec.placement(hosts, ranks, os.environ.get(SHELL))
    match mpiexec.dialect:
        case Dialect.INTEL:
            environment["I_MPI_PIN"] = "off"
        case Dialect.OPEN_MPI_4 | Dialect.OPEN_MPI_5:
            environment = {**_OPEN_MPI_TUNING, **environment, **(AS_ROOT if os.geteuid() == 0 else {})}
            forwarded = [word for name in environment if _FORWARDED.fullmatch(name) for word in ("-x", name)]
            options += ["--oversubscribe", "--bind-to", "none", *forwarded]
    return [mpiexec.program, *options, "-n", str(ranks)], environment


def _dialect(program: str) -> Dialect:
    command = [program, "--version"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{program}: does not run: {error}") from None
    version = asked.stdout + asked.stderr
    if "HYDRA" in version:
        return Dialect.MPICH
    if "Intel" in version:
        return Dialect.INTEL
    if re.search("Open MPI|OpenRTE|PRRTE", version):
        return Dialect.OPEN_MPI_4 if re.search(r"\) [1-4]\.", version) else Dialect.OPEN_MPI_5
    kind = f"neither MPICH's, Intel's nor Open MPI's mpiexec ({version.strip().partition(chr(10))[0][:80]!r})"
    hint = "start the ranks by hand, without --ranks and --hosts"
    raise ConfigError(f"{program}: {kind}, so its options are not known; {hint}")
