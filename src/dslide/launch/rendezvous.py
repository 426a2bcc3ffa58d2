"""Where the launcher listens for its ranks: on the addresses by which they can reach it, and on no others."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from itertools import cycle

from dslide.launch.mpiexec import Host
from dslide.launch.protocol import LauncherAddress
from dslide.util.addresses import route_to

_LOOPBACK = "127.0.0.1"
_ALL_ADDRESSES = ""


class Rendezvous:
    """Listening sockets, one for each of this host's addresses, and the token that a rank must present."""

    def __init__(self, hosts: Sequence[Host], backlog: int):
        self.token = secrets.token_hex(16)
        self.addresses, all_known = _own_addresses(hosts)
        self.listeners = [
            socket.create_server((address, 0), backlog=backlog)
            for address in (self.addresses if all_known else [_ALL_ADDRESSES])
        ]

    def address(self, limit: float) -> LauncherAddress:
        """How ranks reach this launcher; `limit` is the silence limit."""
        ports = cycle(listener.getsockname()[1] for listener in self.listeners)
        return LauncherAddress(self.token, limit, tuple(zip(self.addresses, ports, strict=False)))

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


def _own_addresses(hosts: Sequence[Host]) -> tuple[list[str], bool]:
    """The addresses by which ranks on these hosts reach this one. False if some host's route is unknown, since its name
    is known to ssh alone; then this host's name is one more address to try."""
    if not hosts:
        return [_LOOPBACK], True
    routes = [route_to(host.name) for host in hosts]
    addresses = [route[0] for route in routes if route is not None]
    all_known = None not in routes
    if not all_known:
        addresses.append(socket.gethostname())
    return sorted(dict.fromkeys(addresses), key=lambda address: address.startswith("127.")), all_known
