"""Options of commands that several ranks can do together, and starting those ranks."""

from __future__ import annotations

import argparse
import sys

from ..comm import launched_as
from ..errors import ConfigError
from ..link import link
from .options import whole_number


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """`--ranks` and `--hosts`."""
    parser.set_defaults(starts_ranks=True)
    group = parser.add_argument_group("several ranks")
    group.add_argument(
        "--ranks",
        type=whole_number,
        metavar="N",
        help="start N ranks on this machine, which share the network (default: 1, this process)",
    )
    group.add_argument(
        "--hosts",
        metavar="FILE",
        help="start a rank on each host named in this file, one per line, over ssh (default: none)",
    )


def start_ranks(arguments: argparse.Namespace, argv: list[str]) -> int | None:
    """Runs this command as several ranks if that was asked for, and returns the exit code; None if the command is to be
    done by this process."""
    if not getattr(arguments, "starts_ranks", False):
        return None
    ranks: int | None = arguments.ranks
    file: str | None = arguments.hosts
    if (ranks is None and file is None) or link() is not None:  # ranks of ours have the same options, and are started
        return None
    rank, size = launched_as()
    if size > 1:
        name = "ranks" if ranks is not None else "hosts"
        raise ConfigError(f"{name}: this is rank {rank} of {size} already, started by others; leave --{name} out")
    if ranks is not None and ranks < 1:
        raise ConfigError(f"ranks: expected at least 1, not {ranks}")
    if ranks == 1 and file is None:
        return None

    from ..launch import launch
    from ..mpiexec import read_hosts

    hosts = [] if file is None else read_hosts(file)
    total = sum(host.ranks for host in hosts) or ranks
    if ranks not in (None, total):
        raise ConfigError(f"ranks: {file} has {total} ranks, not {ranks}; give --hosts alone, or make them agree")
    assert total is not None
    command = [sys.executable, "-m", "dslide.cli", *argv]
    return launch(command, total, hosts, stdin=getattr(arguments, "data", None) == "-")
