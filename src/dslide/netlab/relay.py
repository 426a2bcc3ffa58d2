"""Links with a latency, for kernels without netem: a program that carries packets between TAP devices, each after half
of the latency, since from one node to another they pass two links.

    python relay.py SECONDS SWITCH NAMESPACE...

SWITCH is the namespace of the switch, in which the device `node0` belongs to `eth0` in the first namespace, and so on.
It runs in the switch's namespace until it is killed, and prints a line once it carries packets. It imports nothing of
this package, and so begins at once.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

NAMESPACES = "/run/netns"  # where iproute2 keeps them
_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_NETWORK, _TIMER_SLACK = 0x40000000, 29  # CLONE_NEWNET, PR_SET_TIMERSLACK
_SET_DEVICE, _SET_OFFLOAD = 0x400454CA, 0x400454D0  # TUNSETIFF, TUNSETOFFLOAD
_TAP, _NO_INFO, _WITH_HEADER = 0x0002, 0x1000, 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
_CHECKSUMS, _SEGMENTS = 0x01, 0x02  # TUN_F_CSUM, TUN_F_TSO4: several segments may be one packet, as on other links
_MOST_BYTES = 1 << 17
_AT_ONCE = 32  # packets that are read from a device before others have their turn


def enter(namespace: str) -> None:
    """Devices that are opened from now on are those of this network namespace."""
    with open(f"{NAMESPACES}/{namespace}") as file:
        if _LIBC.setns(file.fileno(), _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"{namespace} can't be entered")


def tap(device: str) -> int:
    """A file with the packets of a device, which is made if it is not there."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _SET_DEVICE, struct.pack("16sH22x", device.encode(), _TAP | _NO_INFO | _WITH_HEADER))
    fcntl.ioctl(file, _SET_OFFLOAD, _CHECKSUMS | _SEGMENTS)
    return file


def carry(peers: dict[int, int], seconds: float) -> None:
    """What comes from each file goes to its peer, so many seconds later."""
    waiting: deque[tuple[float, int, bytes]] = deque()  # when it is due, where to, the packet
    files = list(peers)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, file, packet = waiting.popleft()
            with suppress(OSError):  # the other end is down
                os.write(file, packet)
        ready, _, _ = select.select(files, [], [], max(0.0, waiting[0][0] - now) if waiting else None)
        for file in ready:
            with suppress(BlockingIOError):
                for _ in range(_AT_ONCE):
                    packet = os.read(file, _MOST_BYTES)
                    waiting.append((time.monotonic() + seconds, peers[file], packet))


def main() -> None:
    latency, switch, nodes = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ends = []
    for node in nodes:
        enter(node)
        ends.append(tap("eth0"))
    enter(switch)
    peers: dict[int, int] = {}
    for number, end in enumerate(ends):
        port = tap(f"node{number}")
        peers |= {end: port, port: end}
    _LIBC.prctl(_TIMER_SLACK, 1000)  # nanoseconds
    os.setpriority(os.PRIO_PROCESS, 0, -20)  # a link does not wait for the programs that use it
    print("ready", flush=True)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    carry(peers, latency / 2)


if __name__ == "__main__":
    main()
