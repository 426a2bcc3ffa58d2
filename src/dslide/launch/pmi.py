"""The process management interface (PMI, version 1) through which MPICH's ranks find each other when they start: a
store of keys and values, and a barrier.

MPICH's own mpiexec has it too, but listens on all interfaces without authentication for the processes that it starts
on hosts, and sends whoever connects what is meant for them. Here each rank has a socket pair to its agent (agent.py),
and agents talk to the launcher over their stdin and stdout: there is no port.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

_NAME = "dslide"  # of the store
_MAXIMA = "kvsname_max=256 keylen_max=64 vallen_max=1024"


class PmiServer:
    """The store and the barrier of a job. `ranks_per_node` as the ranks are numbered."""

    def __init__(self, ranks_per_node: Sequence[int], job: str):
        self._size = sum(ranks_per_node)
        self.name = f"{_NAME}-{job}"  # of the store
        self._store = {"PMI_process_mapping": process_mapping(ranks_per_node)}
        self._waiting: list[int] = []  # ranks in the barrier

    def answer(self, rank: int, line: str) -> list[tuple[int, str]]:
        """What to send to which ranks after a line of this one."""
        fields = dict(word.partition("=")[::2] for word in line.split(" ") if word)
        match fields.get("cmd"):
            case "init":
                text = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_maxes":
                text = f"cmd=maxes {_MAXIMA}"
            case "get_appnum":
                text = "cmd=appnum appnum=0"
            case "get_universe_size":
                text = f"cmd=universe_size size={self._size}"
            case "get_my_kvsname":
                text = f"cmd=my_kvsname kvsname={self.name}"
            case "put":
                self._store[fields.get("key", "")] = fields.get("value", "")
                text = "cmd=put_result rc=0 msg=success"
            case "get" if fields.get("key") in self._store:
                text = f"cmd=get_result rc=0 msg=success value={self._store[fields['key']]}"
            case "get":
                text = "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            case "barrier_in":
                self._waiting.append(rank)
                if len(self._waiting) < self._size:
                    return []
                waiting, self._waiting = self._waiting, []
                return [(other, "cmd=barrier_out") for other in waiting]
            case "finalize":
                text = "cmd=finalize_ack"
            case _:  # like "abort": the rank exits, and reports it to the launcher itself
                return []
        return [(rank, text)]


def process_mapping(ranks_per_node: Sequence[int]) -> str:
    """Which ranks share a node, as MPICH wants it: like (vector,(0,3,1),(3,1,2)), blocks of first node, nodes, and
    ranks on each of them."""
    blocks, first = [], 0
    for ranks, group in groupby(ranks_per_node):
        nodes = len(list(group))
        blocks.append(f"({first},{nodes},{ranks})")
        first += nodes
    return f"(vector,{','.join(blocks)})"
