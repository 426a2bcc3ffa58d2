"""The bytes and messages of a training step, by formula. They are nearly independent of features and labels."""

from __future__ import annotations

from dslide import _core
from dslide.comm.frames import OVERHEAD, PIECE
from dslide.config import Config
from dslide.model.collectives import SUMMARY
from dslide.model.defaults import resolve
from dslide.model.label_prior import SCALES, has_label_prior, has_trained_prior
from dslide.model.layout import layer_specs
from dslide.model.lsh import hidden_sampling
from dslide.model.micro_batches import micro_batches

# Payload and headers of a TCP packet over Ethernet. A message starts a new packet; the rest of its last one is about
# the size of the acknowledgements.
PACKET_BYTES, HEADER_BYTES = 1448, 66


def bytes_per_step(config: Config, labels: int, ranks: int) -> int:
    """Bytes that each rank sends in a step, frame headers included. An upper bound: activations of zero, half of them
    or more after ReLU, take one bit each where that is shorter."""
    return (ranks - 1) * sum(map(_framed, _messages(config, labels, ranks)))


def messages_per_step(config: Config, labels: int, ranks: int) -> int:
    """Messages that each rank sends, and receives, in a step."""
    return (ranks - 1) * len(_messages(config, labels, ranks))


def bytes_on_wire(config: Config, labels: int, ranks: int) -> int:
    """`bytes_per_step` with packet headers, as network interfaces count."""
    messages = _messages(config, labels, ranks)
    packets = sum(map(_framed, messages)) / PACKET_BYTES + len(messages)
    return bytes_per_step(config, labels, ranks) + round((ranks - 1) * packets * HEADER_BYTES)


def _messages(config: Config, labels: int, ranks: int) -> list[int]:
    """The sizes of the messages that a rank sends to each other rank in a step."""
    if ranks == 1:
        return []
    config, rows = resolve(config, labels), config.batch_size
    parts = [end - begin for begin, end in micro_batches(rows, config.micro_batches)]
    *hidden, output = layer_specs(config, 1, labels)  # features do not matter
    sizes = [SUMMARY.size + (8 * SCALES if has_trained_prior(config) else 0)]  # at most: the data may have no prior
    if has_label_prior(config) and config.prior_hits and config.output != "full":
        sizes.append(4 * rows * config.prior_hits)
    for spec in hidden:
        own = -(-spec.neurons // ranks)
        if not spec.sampled:
            # activations forward, gradients backward; of the latter only the last layer's are sent in parts
            activations = [_core.wire_size(part, own, config.wire) for part in parts]
            sizes += activations
            sizes += activations if spec is hidden[-1] else [_core.wire_size(rows, own, config.wire)]
        else:
            hits, negatives = hidden_sampling(config, spec.neurons, spec.share, rows)
            active = min(spec.neurons, (hits if config.active_sets == "row" else rows * hits) + negatives)
            elements = -(-rows * active // ranks)  # an upper bound: ReLU leaves fewer
            values = _core.wire_size(1, elements, config.wire)
            sizes += [4 * rows + 4 * elements + values, values]
            sizes += [] if config.probe == "vanilla" else [4 * rows * hits]
    output_parts = [rows] if output.sparse_input else parts
    if config.hits_per_row and _ranked(config):
        key_bytes = 8 if config.output == "cells" else 4
        sizes += [key_bytes * part * config.hits_per_row for part in output_parts]
    if config.loss == "softmax":
        sizes += [8 * part for part in output_parts]
    return sizes


def rounds_per_step(config: Config, labels: int) -> int:
    """Collectives of a step that can only start when the previous one has arrived: each costs the latency."""
    config = resolve(config, labels)
    sampled = sum(share < 1 for share in config.hidden_share) if config.probe != "vanilla" else 0
    looked_up = config.hits_per_row > 0  # what the label prior looks up is exchanged beside the first activations
    return 2 * len(config.hidden) + sampled + (looked_up and _ranked(config)) + (config.loss == "softmax")


def _ranked(config: Config) -> bool:
    """Whether ranks agree on the best output neurons that rows look up."""
    return config.output == "cells" or config.probe != "vanilla"


def _framed(size: int) -> int:
    """Bytes of a message with frame headers."""
    return size + OVERHEAD * max(1, -(-size // PIECE))
