"""Every array of a network's state by name: its type, its shape, and what of it each rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dslide.config import Config
from dslide.model.activations import padded
from dslide.model.hash_parameters import automatic, training_family
from dslide.model.label_prior import PREFIX
from dslide.model.lsh import resolve_output
from dslide.model.sharding import WHOLE, Shard, neuron_axis
from dslide.model.storage import STORAGE

CODES, MOVED = "codes", "moved"  # a sampled layer's hash tables: buckets of neurons, and which changed since
MOMENTS = {"adam": ("moment1", "moment2"), "adagrad": ("moment2",), "sgd": ()}  # what optimizers keep of a parameter


def array_dtype(config: Config, array: str) -> np.dtype[Any]:
    """The type of one of a layer's arrays (`weights`, `bias_moment1`, ...). Biases, few as they are, stay float32."""
    if array.endswith("_clock"):
        return np.dtype(np.uint32)
    if array.startswith("bias"):
        return STORAGE["float32"]
    return STORAGE[config.weights if array == "weights" else config.moments]


@dataclass(frozen=True)
class ArrayLayout:
    """One array. Along `axis` lie the layer's neurons, of which every rank holds its own; None: all ranks hold the same
    array."""

    dtype: np.dtype[Any]
    neurons: int  # of the whole layer
    axis: int | None
    rest: tuple[int, ...]  # the shape without that axis
    is_padded: bool = True  # where neurons lie along rows

    def shape(self, shard: Shard = WHOLE) -> tuple[int, ...]:
        """The shape of what a rank holds."""
        if self.axis is None:
            return self.rest
        count = shard.count(self.neurons)
        if self.axis == 0:
            return (count, *self.rest)
        return (*self.rest, padded(count) if self.is_padded else count)


def array_layouts(config: Config, features: int, labels: int) -> dict[str, ArrayLayout]:
    """The arrays of a network in training, as `Network.state` names them."""
    layouts: dict[str, ArrayLayout] = {}
    shares = config.hidden_share or (1.0,) * len(config.hidden)
    sampled = [share < 1 for share in shares] + [resolve_output(config, labels) == "lsh"]
    inputs, sparse_input = features, True
    for i, neurons in enumerate([*config.hidden, labels]):
        for which, rest in (("weights", (inputs if sparse_input else padded(inputs),)), ("bias", (1,))):
            for name in (which, *(f"{which}_{moment}" for moment in MOMENTS[config.optimizer])):
                axis = neuron_axis(name, sparse_input)
                layouts[f"layer{i}.{name}"] = ArrayLayout(array_dtype(config, name), neurons, axis, rest)
            clock = f"{which}_clock"
            axis = neuron_axis(clock, sparse_input)
            of_clock = (inputs,) if axis is None else ()
            layouts[f"layer{i}.{clock}"] = ArrayLayout(array_dtype(config, clock), neurons, axis, of_clock)
        if sampled[i]:
            tables = config.tables or automatic(neurons, inputs, training_family(config.family)).tables
            codes = ArrayLayout(np.dtype(np.uint32), neurons, 1, (tables,), is_padded=False)
            layouts[f"layer{i}.{CODES}"] = codes
            layouts[f"layer{i}.{MOVED}"] = ArrayLayout(np.dtype(np.bool_), neurons, 0, ())
        inputs, sparse_input = neurons, i < len(shares) and sampled[i]
    return layouts


def is_parameter(name: str) -> bool:
    """Whether an array is what prediction needs: weights, biases or links; the others are the optimizer's."""
    return name.endswith((".weights", ".bias")) or name.startswith(PREFIX)
