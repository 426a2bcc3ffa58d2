"""Options of commands that can run as several ranks, and starting those ranks."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dslide.cli.options import add_option, add_switch
from dslide.comm import launched_as
from dslide.comm.liveness import SILENCE_LIMIT
from dslide.errors import ConfigError
from dslide.launch.rank_client import rank_client

if TYPE_CHECKING:
    from dslide.launch.mpiexec import Host


def add_rank_options(parser: argparse.ArgumentParser, elastic: bool = False) -> None:
    """`--ranks` and `--hosts`; `elastic`: also `--elastic` and `--min-ranks`."""
    parser.set_defaults(starts_ranks=True, elastic=False, min_ranks=None)
    group = parser.add_argument_group("several ranks")
    add_option(group, "--ranks", "start N ranks on this machine that share the network", "1, this process")
    hosts = "start a rank on each host in this file (one per line), over ssh"
    add_option(group, "--hosts", hosts, "none", "FILE")
    if elastic:
        group = parser.add_argument_group("elastic runs")
        lost = "restart from the last checkpoint when ranks or hosts are lost"
        add_switch(group, "--elastic", f"{lost}, and resume the run in --out if there is one")
        fewer = "with --elastic and --hosts: wait for hosts instead of training on fewer ranks than this"
        add_option(group, "--min-ranks", fewer, "1")


def start_ranks(arguments: argparse.Namespace, argv: list[str]) -> int | None:
    """Runs this command as several ranks if that was asked for, and returns the exit code; None if this process is to
    do the command itself."""
    if not getattr(arguments, "starts_ranks", False):
        return None
    ranks, file = arguments.ranks, arguments.hosts
    given = {"ranks": ranks is not None, "hosts": file is not None, "elastic": arguments.elastic}
    asked = [name for name, is_given in given.items() if is_given]
    if arguments.min_ranks is not None and not (arguments.elastic and file is not None):
        raise ConfigError("min-ranks: only a run with --elastic and --hosts can have fewer ranks than it was given")
    if not asked or rank_client() is not None:  # a rank has the same options as its launcher
        return None
    (rank, size), name = launched_as(), asked[0]
    if size > 1:
        raise ConfigError(f"{name}: this is rank {rank} of {size} already, started by others; leave --{name} out")
    if ranks is not None and ranks < 1:
        raise ConfigError(f"ranks: expected at least 1, not {ranks}")
    if ranks == 1 and file is None and not arguments.elastic:
        return None

    from dslide.launch.launcher import launch
    from dslide.launch.mpiexec import read_hosts

    hosts = [] if file is None else read_hosts(file)
    total = sum(host.ranks for host in hosts) or ranks or 1
    if ranks not in (None, total):
        raise ConfigError(f"ranks: {file} has {total} ranks, not {ranks}; give --hosts alone, or make them agree")
    limit = getattr(arguments, "watchdog", SILENCE_LIMIT)
    command = [sys.executable, "-m", "dslide.cli", *argv]
    if arguments.elastic:
        return _run_elastic(arguments, command, total, hosts, limit)
    return launch(command, total, hosts, limit=limit, stdin=getattr(arguments, "data", None) == "-").code


def _run_elastic(
    arguments: argparse.Namespace, command: list[str], ranks: int, hosts: Sequence[Host], limit: float
) -> int:
    """Runs `dslide train --elastic`."""
    from dslide.launch.elastic import Supervisor
    from dslide.training.folders import free_folder
    from dslide.training.run_lock import ELASTIC_JOB

    least = 1 if arguments.min_ranks is None else arguments.min_ranks
    if not 1 <= least <= ranks:
        raise ConfigError(f"min-ranks: expected 1 to {ranks}, the ranks there are, not {least}")
    if arguments.resume is not None:
        raise ConfigError("elastic: resumes the run in --out if there is one; give --out in place of --resume")
    if arguments.data == "-":
        raise ConfigError("elastic: data from stdin can't be read again; give a file")
    folder = arguments.out or str(free_folder(arguments.data))
    command = [*command, "--out", folder]  # given twice, it is the same
    os.environ[ELASTIC_JOB] = secrets.token_hex(8)  # its restarts take over the run from each other
    try:
        return Supervisor(command, Path(folder), ranks, hosts, least, limit).run()
    finally:
        del os.environ[ELASTIC_JOB]
