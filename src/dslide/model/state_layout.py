"""Every array of a network's state by name: its type, its shape, and what of it each rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dslide.config import Config
from dslide.model.calibration import DTYPE, NUMBERS
from dslide.model.calibration import NAME as CALIBRATION
from dslide.model.cell_arrays import PREDICTION, RECENT, cell_arrays
from dslide.model.defaults import resolve
from dslide.model.label_prior import PREFIX
from dslide.model.layout import layer_specs
from dslide.model.negatives import DTYPE as INCLUSION_DTYPE
from dslide.model.negatives import NAME as INCLUSION
from dslide.model.negatives import by_frequency
from dslide.model.sharding import WHOLE, Shard, neuron_axis
from dslide.model.storage import SCALE, STORAGE
from dslide.util.arrays import padded

LEARNED = ("trained", "linear_weight", "neighbour_scale", "neighbour_centre")  # of the label prior's arrays
CODES, MOVED = "codes", "moved"  # of an LSH index: buckets of neurons, and which moved since they were hashed
MOMENTS = {"adam": ("moment1", "moment2"), "adagrad": ("moment2",), "sgd": ()}  # of each parameter, by optimizer


def array_dtype(config: Config, array: str) -> np.dtype[Any]:
    """The type of one of a layer's arrays (`weights`, `bias_moment1`, ...). Biases are few, and stay float32."""
    if array.endswith("_clock"):
        return np.dtype(np.uint32)
    if array.startswith("bias") or array.endswith(SCALE):
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
    """The arrays of a network in training, as `Network.state` names them, but for the label prior's, whose sizes depend
    on the data."""
    config = resolve(config, labels)
    layouts: dict[str, ArrayLayout] = {}
    for spec in layer_specs(config, features, labels):
        inputs = spec.inputs if spec.sparse_input else padded(spec.inputs)
        shapes: dict[str, tuple[int, ...]] = {}  # without the axis of neurons
        for which, width in (("weights", inputs), ("bias", 1)):
            arrays = (which, *(f"{which}_{moment}" for moment in MOMENTS[config.optimizer]))
            shapes |= dict.fromkeys(arrays, (width,))
            by_input = neuron_axis(f"{which}_clock", spec.sparse_input) is None
            shapes[f"{which}_clock"] = (spec.inputs,) if by_input else ()
        if config.weights == "int8":
            scale = ArrayLayout(
                STORAGE["float32"], spec.neurons, *((None, (spec.inputs, 1)) if spec.sparse_input else (0, (1,)))
            )
            layouts[f"{spec.name}.weights{SCALE}"] = scale
        for array, rest in shapes.items():
            axis = neuron_axis(array, spec.sparse_input)
            layouts[f"{spec.name}.{array}"] = ArrayLayout(array_dtype(config, array), spec.neurons, axis, rest)
        if spec.hashing is not None:
            tables = (spec.hashing.tables,)
            codes = ArrayLayout(np.dtype(np.uint32), spec.neurons, 1, tables, is_padded=False)
            layouts[f"{spec.name}.{CODES}"] = codes
            layouts[f"{spec.name}.{MOVED}"] = ArrayLayout(np.dtype(np.bool_), spec.neurons, 0, ())
        shapes_of_cells = cell_arrays(config, spec)
        layouts |= {
            name: ArrayLayout(dtype, spec.neurons, None, rest) for name, (dtype, rest) in shapes_of_cells.items()
        }
    layouts[CALIBRATION] = ArrayLayout(DTYPE, labels, 0, (NUMBERS,))
    if by_frequency(config):
        layouts[INCLUSION] = ArrayLayout(INCLUSION_DTYPE, labels, 0, ())
    return layouts


def is_parameter(name: str) -> bool:
    """Whether prediction needs an array: weights, biases, the label prior, the calibration, cells of hidden vectors;
    the others are the optimizer's."""
    of_output = name.startswith((PREFIX, PREDICTION, RECENT)) or name == CALIBRATION
    return of_output or name.endswith((".weights", f".weights{SCALE}", ".bias"))


def must_be_finite(name: str) -> bool:
    """Whether an array holds what training has learned, in which NaN or infinity means that it diverged."""
    return is_parameter(name) and (not name.startswith(PREFIX) or name.endswith(LEARNED))
