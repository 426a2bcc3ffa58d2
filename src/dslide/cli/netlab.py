"""dslide netlab: an emulated cluster on this machine, to try what a slow network does to a run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from dslide.cli.options import add_option, whole_number
from dslide.cli.parser import Parser
from dslide.errors import ConfigError
from dslide.netlab import DEFAULT_NAME, Traffic, cut, down, find, format_rate, restore, set_rate, status, up
from dslide.netlab import run as run_job
from dslide.util.tables import plain_table
from dslide.util.units import format_bytes

NOT_UP = 1  # exit code of `status`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)

    def action(name: str, help_text: str, work: Callable[[argparse.Namespace], int | None]) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
        added.add_argument("--name", default=DEFAULT_NAME, help=f"name of the lab (default: {DEFAULT_NAME})")
        added.set_defaults(work=work)
        return added

    making = action("up", "make nodes and the network between them", _up)
    add_option(making, "--nodes", "number of nodes", 4)
    rate = "what each node can send, and receive: like 100mbit, 1gbit, unlimited (default: 100mbit)"
    making.add_argument("--rate", default="100mbit", help=rate)
    running = action("run", "run a command as an MPI job over all nodes", _run)
    add_option(running, "--ranks-per-node", "ranks on each node", 1)
    add_option(running, "--json", "write exit code, time and bytes of each node there", "not written", "FILE")
    running.add_argument("job", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run, and its arguments")
    action("status", "show nodes, addresses, rate and traffic", _status)
    change = "change the rate of all nodes, while they run"
    changing = action("rate", change, lambda arguments: print(set_rate(arguments.rate, arguments.name)))
    changing.add_argument("rate", metavar="RATE", help="like 100mbit, 1gbit, unlimited")
    cutting = action("cut", "cut a node off the network; it keeps running", _cut)
    silently = "drop its packets, but leave its link up (default: the link is down)"
    cutting.add_argument("--silently", action="store_true", help=silently)
    for one in (cutting, action("restore", "link a node again", _restore)):
        one.add_argument("node", type=whole_number, metavar="NODE", help="its number")
    action("down", "end what runs on the nodes and remove everything", _down)


def run(arguments: argparse.Namespace) -> int | None:
    work: Callable[[argparse.Namespace], int | None] = arguments.work
    return work(arguments)


def _up(arguments: argparse.Namespace) -> None:
    lab = up(arguments.nodes, arguments.rate, arguments.name)
    print(f"{lab}: {', '.join(lab.hosts)}; next: dslide netlab run{_name(arguments)} -- dslide train DATA")


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
        nodes = [{"node": t.node, "sent": t.sent, "received": t.received} for t in result.traffic]
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


def _cut(arguments: argparse.Namespace) -> None:
    cut(arguments.node, arguments.name, arguments.silently)
    print(f"node {arguments.node} is cut off; dslide netlab restore{_name(arguments)} {arguments.node} brings it back")


def _restore(arguments: argparse.Namespace) -> None:
    restore(arguments.node, arguments.name)
    print(f"node {arguments.node} is linked")


def _down(arguments: argparse.Namespace) -> None:
    ended, removed = down(arguments.name)
    if ended:
        print(f"ended {ended} {'process' if ended == 1 else 'processes'}")
    print(f"removed {', '.join(removed)}" if removed else f"no lab {arguments.name!r} is up; nothing to remove")


def _name(arguments: argparse.Namespace) -> str:
    return "" if arguments.name == DEFAULT_NAME else f" --name {arguments.name}"


def _cells(traffic: Traffic) -> list[str]:
    return [str(traffic.node), format_bytes(traffic.sent), format_bytes(traffic.received)]
