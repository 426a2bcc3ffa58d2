"""A lab: making its switch and nodes out of namespaces, changing them while they are up, and removing them.

A lab NAME has the namespaces NAME-switch with a bridge, NAME-node0, NAME-node1, ... with an end of a shaped link each,
and NAME-control, from which jobs are launched, on a link without limit. Links have an interface `eth0` in the node and
one named like `node0` in the switch. Nothing leads out of the lab.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from dslide.errors import ConfigError
from dslide.netlab.agent import write_programs
from dslide.netlab.system import NAMESPACES, LabError, call, check_system, end_processes, start_relay
from dslide.util.atomic import AtomicFile
from dslide.util.units import MOST_RATE, counted, format_ms, format_rate, parse_rate, parse_seconds

DEFAULT_NAME = "dslide"
STATE = Path("/run/dslide-netlab")  # a folder for each lab
MOST_NODES = 64
MOST_LATENCY = 0.5  # seconds
_NETWORK = "10.213.77"  # seen inside the namespaces only; node n is number n + 1
_CONTROL_NUMBER = 254
_BURST_SECONDS = 5e-4  # timers wake late by some 0.1 ms; what was missed meanwhile may be made up for
_BURST_BYTES = 8_000  # and more than one of the packets below
_NODE_QUEUE = 1_000_000  # bytes that wait in a node to be sent
_SWITCH_QUEUE = 256_000  # bytes that wait in the switch for one node, as in small office switches
# TCP may hand over several segments of 1.5 KB as one packet. Each costs the same CPU time, so there should be few of
# them, but a packet that is long on the wire arrives all at once.
_PACKET_SECONDS = 2e-4
_SEGMENT_BYTES, _LEAST_SEGMENTS, _MOST_SEGMENTS = 1_514, 4, 44
# Only the programs in the lab shall cause traffic.
_NO_IPV6 = "for f in all default; do f=/proc/sys/net/ipv6/conf/$f/disable_ipv6; [ ! -e $f ] || echo 1 > $f; done"


@dataclass(frozen=True)
class Lab:
    """A lab that is up."""

    name: str
    nodes: int
    rate: int | None  # bits per second, of each node in each direction
    latency: float = 0.0  # seconds that are added to what a packet takes from one node to another

    @property
    def folder(self) -> Path:
        return STATE / self.name

    @property
    def switch(self) -> str:
        return f"{self.name}-switch"

    @property
    def control(self) -> str:
        return f"{self.name}-control"

    def host(self, node: int) -> str:
        """The node's name: of its namespace, and as a host."""
        return f"{self.name}-node{node}"

    def address(self, node: int) -> str:
        return f"{_NETWORK}.{node + 1}"

    @property
    def hosts(self) -> list[str]:
        return [self.host(node) for node in range(self.nodes)]

    def __str__(self) -> str:
        rate = "rate unlimited" if self.rate is None else f"{format_rate(self.rate)} each"
        latency = f", {format_ms(self.latency)} ms of latency" if self.latency else ""
        return f"{counted(self.nodes, 'node')}, {rate}{latency}"


@dataclass(frozen=True)
class Traffic:
    """Bytes that a node sent and received, headers included."""

    node: int
    sent: int
    received: int


@dataclass(frozen=True)
class Node:
    """A node as it is now."""

    host: str
    address: str
    linked: bool  # whether packets pass
    traffic: Traffic


def up(nodes: int, rate: str, name: str = DEFAULT_NAME, latency: str = "0ms") -> Lab:
    """Makes a lab; `rate`, like `100mbit` or `unlimited`, is what each node can send, and what it can receive;
    `latency`, like `0.5ms`, is added to what a packet takes from one node to another."""
    if not 1 <= nodes <= MOST_NODES:
        raise ConfigError(f"nodes: expected 1 to {MOST_NODES}, not {nodes}")
    bits = parse_rate(rate)
    lab = Lab(_checked(name), nodes, bits, _parse_latency(latency))
    if (found := _load(name)) is not None:
        raise LabError(f"the lab {name!r} is up already ({found}); `{command_line('down', name)}` removes it")
    if lab.folder.exists() or _namespaces(name):
        raise LabError(f"there are remains of a lab {name!r}; `{command_line('down', name)}` removes them")
    try:
        _build(lab)
    except BaseException:
        down(name)
        raise
    return lab


def find(name: str = DEFAULT_NAME) -> Lab:
    """The lab of that name; LabError if it isn't up."""
    lab = _load(_checked(name))
    if lab is None:
        raise LabError(f"no lab {name!r} is up; `{command_line('up', name)}` makes one")
    return lab


def down(name: str = DEFAULT_NAME) -> tuple[int, list[str]]:
    """Ends all processes in the lab and removes it, complete or not; how many were ended, and what was removed."""
    removed = _namespaces(_checked(name))
    ended = end_processes(removed)
    for namespace in removed:
        call("ip", "netns", "delete", namespace)
    if (STATE / name).exists():
        shutil.rmtree(STATE / name)
        removed.append(str(STATE / name))
    return ended, removed


def set_rate(rate: str, name: str = DEFAULT_NAME) -> Lab:
    """Changes what each node can send and receive, at once, whatever runs."""
    bits = parse_rate(rate)
    lab = replace(find(name), rate=bits)
    _shape(lab)
    _save(lab)
    return lab


def cut(node: int, name: str = DEFAULT_NAME, silently: bool = False) -> None:
    """Cuts a node off: it keeps running, but nothing reaches it and nothing leaves it. If `silently`, the link stays
    up, and the switch drops all packets from and to the node."""
    _set_port(node, name, "nomaster" if silently else "down")


def restore(node: int, name: str = DEFAULT_NAME) -> None:
    """Connects a node again, however it was cut off."""
    lab = _set_port(node, name, "master", "bridge", "up")
    for namespace in (lab.control, *lab.hosts):  # failed ARP entries would delay connections to it
        call("ip", "-n", namespace, "neighbour", "flush", "all")


def status(name: str = DEFAULT_NAME) -> tuple[Lab, list[Node]] | None:
    """The lab and its nodes as they are now; None if it isn't up."""
    lab = _load(_checked(name))
    if lab is None:
        return None
    ports = {port["ifname"]: port for port in json.loads(call("ip", "-n", lab.switch, "-json", "link", "show"))}
    linked = ["UP" in port["flags"] and "master" in port for port in (ports[f"node{n}"] for n in range(lab.nodes))]
    return lab, [Node(lab.host(t.node), lab.address(t.node), linked[t.node], t) for t in traffic(lab)]


def traffic(lab: Lab) -> list[Traffic]:
    """Bytes that each node has sent and received since the lab was made."""
    received = _counted(lab.switch)
    return [Traffic(node, _counted(lab.host(node))["eth0"], received[f"node{node}"]) for node in range(lab.nodes)]


def _build(lab: Lab) -> None:
    lab.folder.mkdir(parents=True, mode=0o700)
    ends = [(f"node{node}", lab.host(node), lab.address(node)) for node in range(lab.nodes)]
    ends.append(("control", lab.control, f"{_NETWORK}.{_CONTROL_NUMBER}"))
    for namespace in (lab.switch, *(namespace for _, namespace, _ in ends)):
        call("ip", "netns", "add", namespace)
        call("ip", "netns", "exec", namespace, "sh", "-c", _NO_IPV6)
        call("ip", "-n", namespace, "link", "set", "lo", "up")
    call("ip", "-n", lab.switch, "link", "add", "bridge", "type", "bridge")
    call("ip", "-n", lab.switch, "link", "set", "bridge", "up")
    if lab.latency:
        start_relay(lab.latency, lab.switch, lab.hosts)
    for port, namespace, address in ends:
        if not lab.latency or namespace == lab.control:
            peer = ("peer", "name", "eth0", "netns", namespace)
            call("ip", "-n", lab.switch, "link", "add", port, "type", "veth", *peer)
        call("ip", "-n", lab.switch, "link", "set", port, "master", "bridge", "up")
        call("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        call("ip", "-n", namespace, "link", "set", "eth0", "up")
        _use_cubic(namespace, address)
    _shape(lab)
    lines = ["127.0.0.1 localhost", *(f"{address} {namespace}" for _, namespace, address in ends)]
    (lab.folder / "hosts").write_text("\n".join(lines) + "\n")
    write_programs(lab.folder, lab.name)
    _save(lab)


def _use_cubic(namespace: str, address: str) -> None:
    """Sets the congestion control that most machines have, where this kernel has it: others may pace differently."""
    route = ("route", "replace", f"{_NETWORK}.0/24", "dev", "eth0", "src", address)
    try:
        call("ip", "-n", namespace, *route, "congctl", "cubic")
    except LabError:
        call("ip", "-n", namespace, *route)


def _shape(lab: Lab) -> None:
    """Limits both ends of all links. Without a limit it is a rate that is never reached, because the token bucket
    filter counts bytes too: as they would be on a wire, with the headers of every segment, where interfaces count those
    of a packet once."""
    rate = MOST_RATE if lab.rate is None else lab.rate
    segments = min(_MOST_SEGMENTS, max(_LEAST_SEGMENTS, int(rate / 8 * _PACKET_SECONDS / _SEGMENT_BYTES)))
    burst = _BURST_BYTES + round(rate / 8 * _BURST_SECONDS)
    for node, host in enumerate(lab.hosts):
        call("ip", "-n", host, "link", "set", "eth0", "gso_max_segs", str(segments))
        for namespace, device, queue in ((host, "eth0", _NODE_QUEUE), (lab.switch, f"node{node}", _SWITCH_QUEUE)):
            limits = ("rate", f"{rate}bit", "burst", f"{burst}b", "limit", f"{burst + queue}b")
            call("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *limits)


def _parse_latency(text: str) -> float:
    seconds = parse_seconds(text, "latency")
    if not 0 <= seconds <= MOST_LATENCY:
        raise ConfigError(f"latency: expected 0 to {format_ms(MOST_LATENCY)} ms, not {text!r}")
    return seconds


def _set_port(node: int, name: str, *state: str) -> Lab:
    lab = find(name)
    if not 0 <= node < lab.nodes:
        raise ConfigError(f"node: expected 0 to {lab.nodes - 1}, not {node}")
    call("ip", "-n", lab.switch, "link", "set", f"node{node}", *state)
    return lab


def _counted(namespace: str) -> dict[str, int]:
    """Bytes that went out of each shaped interface."""
    found = json.loads(call("tc", "-n", namespace, "-s", "-json", "qdisc", "show"))
    return {entry["dev"]: int(entry["bytes"]) for entry in found if entry["kind"] == "tbf"}


def _checked(name: str) -> str:
    """The name of a lab, if it can be one, on a system that can have labs."""
    if re.fullmatch(r"[a-z][a-z0-9]{0,31}", name) is None:
        raise ConfigError(f"name: expected up to 32 small letters and digits, a letter first, not {name!r}")
    check_system()
    return name


def _namespaces(name: str) -> list[str]:
    """Those of the lab, by their names."""
    pattern = re.compile(rf"{name}-(switch|control|node\d+)")
    found = os.listdir(NAMESPACES) if NAMESPACES.exists() else []
    return sorted(namespace for namespace in found if pattern.fullmatch(namespace))


def _load(name: str) -> Lab | None:
    try:
        state = json.loads((STATE / name / "lab.json").read_text())
        return Lab(name, int(state["nodes"]), state["rate"], float(state["latency"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise LabError(f"{STATE / name}/lab.json: damaged; `{command_line('down', name)}` removes the lab") from None


def _save(lab: Lab) -> None:
    """Written last and at once, so that a lab with this file is whole."""
    with AtomicFile(lab.folder / "lab.json", encoding="utf-8") as file:
        json.dump({"nodes": lab.nodes, "rate": lab.rate, "latency": lab.latency}, file)


def command_line(action: str, name: str) -> str:
    """What a user types for an action on a lab, without its arguments."""
    return f"dslide netlab {action}" + (f" --name {name}" if name != DEFAULT_NAME else "")
