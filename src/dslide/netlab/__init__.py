"""An emulated cluster on one Linux machine: network namespaces as nodes, joined by a bridge, with a limited rate each.

    netlab.up(4, "100mbit")
    result = netlab.run(["dslide", "train", "data.txt"])  # one MPI rank per node
    print(result.code, result.traffic)  # bytes that each node sent and received
    netlab.down()

Needs root. Labs of different names live side by side; nothing outside their own namespaces is changed.
"""

from dslide.netlab.jobs import JobResult, enter, run, supervise
from dslide.netlab.lab import DEFAULT_NAME, Lab, Node, Traffic, cut, down, find, restore, set_rate, status, traffic, up
from dslide.netlab.system import LabError
from dslide.util.units import format_rate, parse_rate

__all__ = [
    "DEFAULT_NAME",
    "JobResult",
    "Lab",
    "LabError",
    "Node",
    "Traffic",
    "cut",
    "down",
    "enter",
    "find",
    "format_rate",
    "parse_rate",
    "restore",
    "run",
    "set_rate",
    "status",
    "supervise",
    "traffic",
    "up",
]  # fmt: skip
