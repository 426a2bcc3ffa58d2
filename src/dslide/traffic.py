"""What a training step sends, by formula: known before anything is trained, and nearly independent of features and
labels."""

from __future__ import annotations

from . import _core
from .comm.communicator import PIECE
from .comm.frames import OVERHEAD
from .config import Config
from .exchange import SUMMARY
from .network import exchanged_parts
from .sampler import hidden_sampling_sizes, sampling_sizes


def bytes_per_step(config: Config, labels: int, ranks: int) -> int:
    """Bytes that each rank sends in a step, headers included. An upper bound: activations that are zero, half of them
    or more behind ReLU, cost a bit each where that is shorter."""
    if ranks == 1:
        return 0
    rows = config.batch_size
    parts = [end - begin for begin, end in exchanged_parts(config, rows, ranks)]
    shares = config.hidden_share or (1.0,) * len(config.hidden)
    to_each = _framed(SUMMARY.size)
    for i, (neurons, share) in enumerate(zip(config.hidden, shares, strict=True)):
        own, last = -(-neurons // ranks), i == len(config.hidden) - 1
        if share == 1:  # activations one way, gradients the other; only the last layer's gradients go in parts
            values = [_core.wire_size(part, own, config.wire) for part in parts]
            to_each += sum(map(_framed, values))
            to_each += sum(map(_framed, values)) if last else _framed(_core.wire_size(rows, own, config.wire))
        else:
            hits, elements = _sampled_layer(config, neurons, share)
            values = [_core.wire_size(1, -(-elements // ranks), config.wire)]
            to_each += _framed(4 * rows + 4 * -(-elements // ranks) + values[0]) + _framed(values[0])
            to_each += 0 if config.probe == "vanilla" else _framed(4 * rows * hits)
    in_parts = parts if shares[-1] == 1 else [rows]
    hits, _ = sampling_sizes(config, labels)
    if hits and config.probe != "vanilla":
        to_each += sum(_framed(4 * part * hits) for part in in_parts)
    if config.loss == "softmax":
        to_each += sum(_framed(8 * part) for part in in_parts)
    return (ranks - 1) * to_each


def rounds_per_step(config: Config, labels: int) -> int:
    """Exchanges of a step that can only begin when the one before has arrived: the latency of each is paid."""
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
