"""Where the launcher listens for its ranks: on the addresses that they can reach it by, and on no others."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from itertools import cycle

from dslide.launch.mpiexec import Host

HERE = "127.0.0.1"
_EVERYWHERE = ""


class Rendezvous:
    """Listening sockets, one for each of this host's addresses, and the secret that ranks must know to come in."""

    def __init__(self, hosts: Sequence[Host], backlog: int):
        self.token = secrets.token_hex(16)
        self.addresses, known = _own_addresses(hosts)
        self.listeners = [
            socket.create_server((address, 0), backlog=backlog)
            for address in (self.addresses if known else [_EVERYWHERE])
        ]
        ports = [listener.getsockname()[1] for listener in self.listeners]
        self._places = [f"{address}:{port}" for address, port in zip(self.addresses, cycle(ports), strict=False)]

    def told(self, limit: float) -> str:
        """What ranks are told, as link.py reads it."""
        return f"{self.token} {limit:g} {','.join(self._places)}"

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


def _own_addresses(hosts: Sequence[Host]) -> tuple[list[str], bool]:
    """Where ranks on these hosts find this one: the addresses it has on the way to them. False if not all are known,
    since some names mean something to ssh alone; then this host's name is one more to try."""
    if not hosts:
        return [HERE], True
    addresses, known = [], True
    for host in hosts:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            try:
                way.connect((host.name, 9))  # sends nothing
                addresses.append(way.getsockname()[0])
            except OSError:
                known = False
    if not known:
        addresses.append(socket.gethostname())
    return sorted(dict.fromkeys(addresses), key=lambda address: address.startswith("127.")), known
