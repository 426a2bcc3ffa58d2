"""Which cells of hidden vectors (cells.py) a network has, and the type and shape of their arrays: `cells.`, which are
looked up in training, `index.`, in prediction, and `recent.`, the hidden vectors that cells are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from dslide.model.defaults import FULL_BELOW, ResolvedConfig
from dslide.model.label_prior import has_label_prior
from dslide.model.layout import LayerSpec
from dslide.util.arrays import padded

TRAINING, PREDICTION, RECENT = "cells.", "index.", "recent."  # begin the names of arrays
CENTRES, LABELS = "centres", "labels"  # arrays of cells
VALUES, SEEN = "values", "seen"  # arrays of recent rows

CELLS = 256
SAMPLE = 4096  # recent rows that are clustered
TRAINING_LABELS = 128  # of a cell in training
PREDICTION_SHARE, LEAST_LABELS, MOST_LABELS = 0.01, 256, 4096  # of all labels: those of a cell in prediction

Shapes = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


def has_training_cells(config: ResolvedConfig, spec: LayerSpec) -> bool:
    """Whether training looks up a layer's neurons in cells."""
    return spec.is_output and config.output == "cells"


def has_prediction_cells(config: ResolvedConfig, spec: LayerSpec) -> bool:
    """Whether approximate prediction looks up a layer's neurons in cells: of an output layer behind dense activations
    that is not hashed and has more labels than are best computed in full."""
    fits = spec.is_output and not spec.sampled and not spec.sparse_input
    return fits and (spec.neurons > FULL_BELOW or config.output == "cells")


def training_labels(spec: LayerSpec) -> int:
    """The labels of a cell in training."""
    return min(spec.neurons, TRAINING_LABELS)


def prediction_labels(config: ResolvedConfig, spec: LayerSpec) -> int:
    """The labels of a cell in prediction. Few will do beside a label prior, which leads to most of a row's labels."""
    share = 0 if has_label_prior(config) else round(PREDICTION_SHARE * spec.neurons)
    return min(spec.neurons, max(LEAST_LABELS, min(MOST_LABELS, share)))


def cell_bytes(config: ResolvedConfig, spec: LayerSpec, threads: int) -> tuple[int, int]:
    """Memory of a layer's cells, and more of it while they are rebuilt: each thread's best labels of every centre, and
    a few copies of the recent rows."""
    kept = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in cell_arrays(config, spec).values())
    labels = prediction_labels(config, spec) if has_prediction_cells(config, spec) else 0
    return kept, kept + (12 * CELLS * labels * (threads + 2) + 8 * SAMPLE * padded(spec.inputs) if labels else 0)


def cell_arrays(config: ResolvedConfig, spec: LayerSpec) -> Shapes:
    """The arrays of a layer's cells, by name, which are the same on all ranks."""
    centres = np.dtype(np.float32), (CELLS, padded(spec.inputs))
    shapes: Shapes = {}
    if has_training_cells(config, spec):
        shapes[TRAINING + CENTRES] = centres
        shapes[TRAINING + LABELS] = np.dtype(np.int32), (CELLS, training_labels(spec))
    if has_prediction_cells(config, spec):
        shapes[PREDICTION + CENTRES] = centres
        shapes[PREDICTION + LABELS] = np.dtype(np.int32), (CELLS, prediction_labels(config, spec))
        shapes[RECENT + VALUES] = np.dtype(np.float32), (SAMPLE, padded(spec.inputs))
        shapes[RECENT + SEEN] = np.dtype(np.int64), (1,)
    return shapes
