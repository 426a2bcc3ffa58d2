"""The time of a training step on several nodes, a rank on each, by a model.

    busy = compute + messages x MESSAGE_SECONDS
    step = max(busy, wire) + min(busy, wire) / parts + rounds x latency

- compute: what the node with the most neurons computes, packing of messages included, and 6 % for waiting: nodes that
  have as much to do are never quite as fast, and all wait for the slowest in every round
- messages: those that a node sends in a step; it gets as many. Each costs time in MPI and in the system.
- wire: the bytes that a node sends in a step, headers of packets included, over the bandwidth of its link. Links carry
  as much both ways at once, and a node gets as much as it sends.
- parts: a batch is exchanged in so many parts, one of which crosses the network while another is computed. So the
  shorter of the two is hidden behind the longer one but for a part of it. Where parts can't overlap it is 1, and both
  add up.
- rounds: exchanges of a step that wait for one another. Each takes the latency, from one program to the other.

Left out: nodes that differ by more, switches that can't carry what all links can, and other traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

from dslide.config import Config
from dslide.model.defaults import settled
from dslide.model.micro_batches import exchanged_parts
from dslide.planner.traffic import bytes_on_wire, messages_per_step, rounds_per_step

# For a message sent and one received, by MPI over TCP: from 2 to 16 ranks on a 2-core machine the exchanges of a step
# took 45 microseconds of processor time more for each message (python -m bench.cluster scaling).
MESSAGE_SECONDS = 5e-5
UNEVEN = 1.06  # two ranks of equal shares waited 5 % to 8 % of the time for each other, without limits on their link


@dataclass(frozen=True)
class Link:
    """What connects each node to all others."""

    bits: int | None  # per second, each way; None: no limit
    latency: float  # seconds from one program to the other


@dataclass(frozen=True)
class NodeStep:
    """A step of training on a node, in seconds."""

    compute: float
    messages: float = 0.0  # handling them
    wire: float = 0.0
    latency: float = 0.0  # of all rounds
    parts: int = 1

    @property
    def hidden(self) -> float:
        """What of being busy and sending goes on at the same time."""
        return min(self.compute + self.messages, self.wire) * (1 - 1 / self.parts)

    @property
    def total(self) -> float:
        return self.compute + self.messages + self.wire - self.hidden + self.latency

    @property
    def bottleneck(self) -> str:
        """What takes longest: compute, messages, link bandwidth or link latency."""
        found = {
            "compute": self.compute, "messages": self.messages, "link bandwidth": self.wire,
            "link latency": self.latency,
        }  # fmt: skip
        return max(found, key=lambda name: found[name])


def node_step(config: Config, labels: int, nodes: int, compute: float, link: Link) -> NodeStep:
    """The step of a network that computes for so long on each of its nodes."""
    if nodes == 1:
        return NodeStep(compute)
    config = settled(config, labels)
    handling = MESSAGE_SECONDS * messages_per_step(config, labels, nodes)
    wire = 0.0 if link.bits is None else 8 * bytes_on_wire(config, labels, nodes) / link.bits
    latency = link.latency * rounds_per_step(config, labels)
    return NodeStep(UNEVEN * compute, handling, wire, latency, overlapping_parts(config, nodes))


def overlapping_parts(config: Config, nodes: int) -> int:
    """Into how many parts a batch is cut whose exchange overlaps with computing; sampled hidden layers and active sets
    per row are exchanged whole."""
    if config.active_sets == "row" or any(share < 1 for share in config.hidden_share):
        return 1
    return len(exchanged_parts(config, config.batch_size, nodes))
