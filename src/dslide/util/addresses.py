"""The addresses of this machine, as other hosts see it."""

from __future__ import annotations

import socket


def route_to(host: str) -> tuple[str, str] | None:
    """The IPv4 addresses at both ends of the route to a host, this machine's first; None if the name is unknown here or
    there is no route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            return probe.getsockname()[0], probe.getpeername()[0]
        except OSError:
            return None
