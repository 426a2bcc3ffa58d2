"""dslide netlab: an emulated cluster on this machine, to try what a slow network does to a run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from dslide.cli.options import whole_number
from dslide.cli.parser import Parser
from dslide.errors import ConfigError
from dslide.netlab import DEFAULT_NAME, Traffic, cut, down, find, format_rate, restore, set_rate, status, up
from dslide.netlab import run as run_job
from dslide.netlab.lab import command_line
from dslide.util.tables import plain_table
from dslide.util.units import format_bytes

NOT_UP = 1  # exit code of `status`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)

    def action(name: str, help_text: str, work: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
        added.add_argument("--name", default=DEFAULT_NAME, help=f"name of the lab (default: {DEFAULT_NAME})")
        added.set_defaults(work=work)
        return added

    making = action("up", "make nodes and the network between them", _up)
    making.add_argument("--nodes", type=whole_number, default=4, metavar="N", help="number of nodes (default: 4)")
    rate = "what each node can send, and receive: like 100mbit, 1gbit, unlimited (default: 100mbit)"
    making.add_argument("--rate", default="100mbit", help=rate)
    latency = "added to what a packet takes from one node to another, like 0.5ms (default: 0ms)"
    making.add_argument("--latency", default="0ms", metavar="TIME", help=latency)
    running = action("run", "run a command as an MPI job over all nodes", _run)
    ranks = "ranks on each node (default: 1)"
    running.add_argument("--ranks-per-node", type=whole_number, default=1, metavar="N", help=ranks)
    report = "write exit code, time and bytes of each node there (default: not written)"
    running.add_argument("--json", metavar="FILE", help=report)
    running.add_argument("job", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run, and its arguments")
    action("status", "show nodes, addresses, rate and traffic", _status)
    changing = action("rate", "change the rate of all nodes, while they run", _rate)
    changing.add_argument("rate", metavar="RATE", help="like 100mbit, 1gbit, unlimited")
    cutting = action("cut", "cut a node off the network; it keeps running", _cut)
    silently = "drop its packets, but leave its link up (default: the link is down)"
    cutting.add_argument("--silently", action="store_true", help=silently)
    for one in (cutting, action("restore", "link a node again", _restore)):
        one.add_argument("node", type=whole_number, metavar="NODE", help="its number")
    action("down", "end what runs on the nodes and remove everything", _down)


def run(arguments: argparse.Namespace) -> int:
    work: Callable[[argparse.Namespace], int] = arguments.work
    return work(arguments)


def _up(arguments: argparse.Namespace) -> int:
    lab = up(arguments.nodes, arguments.rate, arguments.name, arguments.latency)
    print(f"{lab}: {', '.join(lab.hosts)}; next: {command_line('run', lab.name)} -- dslide train DATA")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.job[1:] if arguments.job[:1] == ["--"] else arguments.job
    target = None if arguments.json is None else Path(arguments.json)
    if target is not None and not target.absolute().parent.is_dir():
        raise ConfigError(f"--json: {target} can't be written: there is no folder {target.absolute().parent}")
    result = run_job(command, arguments.ranks_per_node, arguments.name)
    rate = find(arguments.name).rate
    if result.launcher_hung:
        print("mpiexec was killed: it waited for nodes on which nothing ran any more", file=sys.stderr)
    # On stderr, because stdout is the command's.
    print(f"\n{result.seconds:.1f} s, {format_rate(rate)}, exit code {result.code}", file=sys.stderr)
    print(*plain_table([["node", "sent", "received"], *map(_cells, result.traffic)]), sep="\n", file=sys.stderr)
    if target is not None:
        nodes = [asdict(traffic) for traffic in result.traffic]
        report = {"code": result.code, "seconds": round(result.seconds, 3), "bits_per_second": rate, "nodes": nodes}
        target.write_text(json.dumps(report, indent=2) + "\n")
    return result.code


def _status(arguments: argparse.Namespace) -> int:
    found = status(arguments.name)
    if found is None:
        print(f"no lab {arguments.name!r} is up")
        return NOT_UP
    lab, nodes = found
    print(f"lab {lab.name!r} is up: {lab}")
    rows = [[n.host, n.address, "up" if n.linked else "cut", *_cells(n.traffic)[1:]] for n in nodes]
    print(*plain_table([["node", "address", "link", "sent", "received"], *rows]), sep="\n")
    return 0


def _rate(arguments: argparse.Namespace) -> int:
    print(set_rate(arguments.rate, arguments.name))
    return 0


def _cut(arguments: argparse.Namespace) -> int:
    cut(arguments.node, arguments.name, arguments.silently)
    undo = f"{command_line('restore', arguments.name)} {arguments.node}"
    print(f"node {arguments.node} is cut off; {undo} brings it back")
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    restore(arguments.node, arguments.name)
    print(f"node {arguments.node} is linked")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    ended, removed = down(arguments.name)
    if ended:
        print(f"ended {ended} process{'es' * (ended != 1)}")
    print(f"removed {', '.join(removed)}" if removed else f"no lab {arguments.name!r} is up; nothing to remove")
    return 0


def _cells(traffic: Traffic) -> list[str]:
    return [str(traffic.node), format_bytes(traffic.sent), format_bytes(traffic.received)]
