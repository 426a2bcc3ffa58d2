"""What a training step sends, by formula: known before anything is trained, and nearly independent of features and
labels."""

from __future__ import annotations

from dslide import _core
from dslide.comm.communicator import PIECE
from dslide.comm.frames import OVERHEAD
from dslide.config import Config
from dslide.model.collectives import SUMMARY
from dslide.model.defaults import settled
from dslide.model.lsh import hidden_sampling_sizes, sampling_sizes
from dslide.model.micro_batches import exchanged_parts

# Packets of TCP over Ethernet: what they carry, and their headers. A message begins one, and what is over when it ends
# is about what its sender gets confirmed in.
PACKET_BYTES, HEADER_BYTES = 1448, 66


def bytes_per_step(config: Config, labels: int, ranks: int) -> int:
    """Bytes that each rank sends in a step, headers of frames included. An upper bound: activations that are zero, half
    of them or more behind ReLU, cost a bit each where that is shorter."""
    return (ranks - 1) * sum(map(_framed, _messages(config, labels, ranks)))


def messages_per_step(config: Config, labels: int, ranks: int) -> int:
    """Messages that each rank sends in a step, and receives."""
    return (ranks - 1) * len(_messages(config, labels, ranks))


def bytes_on_wire(config: Config, labels: int, ranks: int) -> int:
    """The same with the headers of packets, as interfaces count them."""
    messages = _messages(config, labels, ranks)
    packets = sum(map(_framed, messages)) / PACKET_BYTES + len(messages)
    return bytes_per_step(config, labels, ranks) + round((ranks - 1) * packets * HEADER_BYTES)


def _messages(config: Config, labels: int, ranks: int) -> list[int]:
    """The sizes of what a rank sends to each other one in a step."""
    if ranks == 1:
        return []
    config, rows = settled(config, labels), config.batch_size
    parts = [end - begin for begin, end in exchanged_parts(config, rows, ranks)]
    shares = config.hidden_share or (1.0,) * len(config.hidden)
    sizes = [SUMMARY.size]
    for i, (neurons, share) in enumerate(zip(config.hidden, shares, strict=True)):
        own, last = -(-neurons // ranks), i == len(config.hidden) - 1
        if share == 1:  # activations one way, gradients the other; only the last layer's gradients go in parts
            values = [_core.wire_size(part, own, config.wire) for part in parts]
            sizes += values
            sizes += values if last else [_core.wire_size(rows, own, config.wire)]
        else:
            hits, elements = _sampled_layer(config, neurons, share)
            values = [_core.wire_size(1, -(-elements // ranks), config.wire)]
            sizes += [4 * rows + 4 * -(-elements // ranks) + values[0], values[0]]
            sizes += [] if config.probe == "vanilla" else [4 * rows * hits]
    in_parts = parts if shares[-1] == 1 else [rows]
    hits, _ = sampling_sizes(config, labels)
    if hits and config.probe != "vanilla":
        sizes += [4 * part * hits for part in in_parts]
    if config.loss == "softmax":
        sizes += [8 * part for part in in_parts]
    return sizes


def rounds_per_step(config: Config, labels: int) -> int:
    """Collectives of a step that can only begin when the one before has arrived: the latency of each is paid."""
    config = settled(config, labels)
    hits, _ = sampling_sizes(config, labels)
    asks = config.probe != "vanilla"
    sampled = sum(share < 1 for share in config.hidden_share)
    return 2 * len(config.hidden) + asks * (sampled + (hits > 0)) + (config.loss == "softmax")


def _sampled_layer(config: Config, neurons: int, share: float) -> tuple[int, int]:
    """Hits that each row asks for in a sampled hidden layer, and activations of all rows together, of which ReLU leaves
    fewer."""
    rows = config.batch_size
    hits, draws = hidden_sampling_sizes(config, neurons, share, rows)
    return hits, rows * min(neurons, (hits if config.active_sets == "row" else rows * hits) + draws)


def _framed(size: int) -> int:
    """Bytes of a message with its headers."""
    return size + OVERHEAD * max(1, -(-size // PIECE))
