"""Time model: the time of a training step on several nodes with one rank each.

    busy = compute + messages x MESSAGE_SECONDS
    step = max(busy, wire) + min(busy, wire) / parts + rounds x latency

- compute: the time of the node with the most neurons, packing of messages included, plus 6 % for load imbalance: equal
  shares never take exactly equal time, and all nodes wait for the slowest in every round
- messages: sent by a node in a step; it receives as many. Each costs time in MPI and in the kernel.
- wire: bytes that a node sends in a step, packet headers included, over the bandwidth of its link. Links are full
  duplex, and a node receives as much as it sends.
- parts: the micro-batches of a batch; one is exchanged while another is computed. The shorter of busy and wire is
  hidden behind the longer one, except for one part of it. Without overlap parts is 1, and both add up.
- rounds: collectives of a step that wait for each other. Each costs the latency between two programs.

Not modelled: slower nodes, switches slower than the sum of their links, other traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

from dslide.config import Config
from dslide.model.defaults import resolve
from dslide.model.micro_batches import PARTS, micro_batches
from dslide.planner.traffic import bytes_on_wire, messages_per_step, rounds_per_step

# Sending and receiving a message with MPI over TCP: with 2 to 16 ranks on a 2-core machine the collectives of a step
# took 45 microseconds of CPU time more per message (python -m bench.cluster scaling).
MESSAGE_SECONDS = 5e-5
UNEVEN = 1.06  # two ranks of equal shares waited 5 % to 8 % of the time for each other, over an unlimited link


@dataclass(frozen=True)
class NetworkSpeed:
    """The link of each node to all others."""

    bits: int | None  # per second, in each direction; None: unlimited
    latency: float  # seconds from one program to another


@dataclass(frozen=True)
class NodeStep:
    """A training step of a node, in seconds."""

    compute: float
    messages: float = 0.0  # handling them
    wire: float = 0.0
    latency: float = 0.0  # of all rounds
    parts: int = 1

    @property
    def hidden(self) -> float:
        """The overlap of computing and sending."""
        return min(self.compute + self.messages, self.wire) * (1 - 1 / self.parts)

    @property
    def total(self) -> float:
        return self.compute + self.messages + self.wire - self.hidden + self.latency

    @property
    def bottleneck(self) -> str:
        """The longest part: compute, messages, link bandwidth or link latency."""
        found = {"compute": self.compute, "messages": self.messages}
        found |= {"link bandwidth": self.wire, "link latency": self.latency}
        return max(found, key=lambda name: found[name])


def node_step(config: Config, labels: int, nodes: int, compute: float, network: NetworkSpeed) -> NodeStep:
    """A step on several nodes that takes `compute` seconds of computing on each."""
    if nodes == 1:
        return NodeStep(compute)
    config = resolve(config, labels)
    handling = MESSAGE_SECONDS * messages_per_step(config, labels, nodes)
    wire = 0.0 if network.bits is None else 8 * bytes_on_wire(config, labels, nodes) / network.bits
    latency = network.latency * rounds_per_step(config, labels)
    return NodeStep(UNEVEN * compute, handling, wire, latency, overlapping_parts(config))


def overlapping_parts(config: Config) -> int:
    """The number of micro-batches whose exchange overlaps with computing. With sampled hidden layers or active sets per
    row there is no overlap."""
    if config.active_sets == "row" or any(share < 1 for share in config.hidden_share):
        return 1
    return len(micro_batches(config.batch_size, config.micro_batches or PARTS))
