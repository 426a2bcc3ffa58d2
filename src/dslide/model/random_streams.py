"""Random numbers as functions of (seed, stream, step): training resumed at any step draws what it would have drawn."""

from __future__ import annotations

import enum

from dslide import _core


class Stream(enum.IntEnum):
    """What random numbers are for. Streams of hidden layers have the layer's index added."""

    INPUT_DROPOUT = 1
    OUTPUT_NEGATIVES = 2
    DENSE_DROPOUT = 3  # of the dense features of rows that also have sparse ones
    HIDDEN_NEGATIVES = 16
    HIDDEN_DROPOUT = 32


def stream_seed(seed: int, stream: Stream, step: int, layer: int = 0) -> int:
    """The seed of a stream in one step."""
    return int(_core.mix(seed ^ ((stream + layer) << 48), step))


def layer_seed(seed: int, layer: int) -> int:
    """The seed of a layer's initial weights, hash functions and tie-breaks."""
    return int(_core.mix(seed, layer))
