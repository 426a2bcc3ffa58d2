"""An output layer and what belongs to it: its loss, what finds its neurons in training and in prediction, and how
likely each is a random negative. A whole network (network.py) has hidden layers before it; `dslide.torch` has only
this.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dslide.model import prediction
from dslide.model.calibration import NAME as CALIBRATION
from dslide.model.calibration import Calibration
from dslide.model.cell_arrays import (
    PREDICTION,
    RECENT,
    TRAINING,
    has_prediction_cells,
    has_training_cells,
    prediction_labels,
    training_labels,
)
from dslide.model.cells import Cells, RecentRows
from dslide.model.collectives import Collectives
from dslide.model.defaults import ResolvedConfig
from dslide.model.layer import Layer
from dslide.model.negatives import NAME as INCLUSION
from dslide.model.negatives import by_frequency, inclusion_probabilities
from dslide.model.output_losses import OUTPUT_LOSSES, OutputLoss
from dslide.model.retriever import Retriever
from dslide.model.sharding import Shard
from dslide.model.storage import copy_array
from dslide.util.arrays import Array, Floats


class OutputNetwork:
    """Layers of which the last one is the output layer. `weights`, a mapping of array names to arrays, takes the place
    of fresh cells and of a fresh calibration. `passes_gradient`: something before the output layer is trained."""

    def __init__(
        self, config: ResolvedConfig, labels: int, collectives: Collectives, layers: Sequence[Layer], *,
        trainable: bool = True, weights: Mapping[str, Array] | None = None, passes_gradient: bool = True,
    ) -> None:  # fmt: skip
        self.config: ResolvedConfig = config
        self.labels, self.layers = labels, list(layers)
        self.comm, self.collectives = collectives.comm, collectives
        self.shard: Shard = collectives.shard
        self.loss: OutputLoss = OUTPUT_LOSSES[config.loss](self.output, collectives, passes_gradient)
        self.calibration = self._calibration(weights)
        self.inclusion: Floats | None = None  # (own labels): probability of being a random negative; None: all alike
        if trainable and by_frequency(config):
            self.inclusion = self._inclusion(None)
        self._make_cells(weights, trainable)
        self.version = 0  # incremented whenever weights change
        self._tables: tuple[int, Retriever] | None = None  # hash tables for prediction, and the version they are of
        self._making_index = threading.Lock()

    @property
    def output(self) -> Layer:
        """The output layer."""
        return self.layers[-1]

    @property
    def retriever(self) -> Retriever | None:
        """What training looks output neurons up in."""
        return self.output.lsh or self.cells

    def _make_cells(self, weights: Mapping[str, Array] | None, trainable: bool) -> None:
        """Cells that training and prediction look output neurons up in, and what they are made of; None: without."""
        config, spec = self.config, self.output.spec
        self.cells: Cells | None = None
        self.index: Cells | None = None
        self.recent: RecentRows | None = None
        if trainable and has_training_cells(config, spec):
            self.cells = Cells(self.output, training_labels(spec), self.collectives)
        if has_prediction_cells(config, spec):
            self.index = Cells(self.output, prediction_labels(config, spec), self.collectives)
            self.recent = RecentRows(self.output.inputs)
        if weights is not None:
            self._load_cells(weights)

    def _load_cells(self, arrays: Mapping[str, Array]) -> None:
        if self.cells is not None:
            self.cells.load(arrays, TRAINING)
        if self.index is not None and self.recent is not None:
            self.index.load(arrays, PREDICTION)
            self.recent.load(arrays)

    def _calibration(self, arrays: Mapping[str, Array] | None) -> Calibration:
        return Calibration(self.output.neurons, self.config.loss == "softmax", arrays)

    # ---- training ---------------------------------------------------------------------------------------------------

    def begin_step(self, step: int, rate: float) -> None:
        """What comes before a step: hash tables exist, the learning rate is set."""
        self.version += 1
        self.calibration.reset()
        if self.index is not None and self.index.built:
            self.index.forget()
        self.comm.step = step + 1
        for layer in self.layers:
            if layer.lsh is not None and not layer.lsh.built:
                layer.rebuild_tables()
            layer.optimizer.rate = rate

    def rebuild_tables(self) -> int:
        """Brings what is looked up in training up to date with the weights; returns how many neurons were hashed.

        Returns
        -------
        int
            Neurons that were hashed.
        """
        if self.cells is not None and self.recent is not None and len(self.recent.rows):
            self.cells.build(self.recent.rows)
        return sum(layer.rebuild_tables() for layer in self.layers)

    def set_output_bias(self, frequencies: npt.NDArray[np.float64]) -> None:
        """Lets an untrained network predict every label as often as it occurs."""
        if not self.config.output_bias:
            return
        self.output.set_bias(self.shard.part(self.loss.initial_bias(frequencies)).astype(np.float32))

    def set_negatives(self, frequencies: npt.NDArray[np.float64]) -> None:
        """Samples negatives by how often labels occur, if the options say so."""
        if self.inclusion is not None:
            self.inclusion = self._inclusion(frequencies)

    def _inclusion(self, frequencies: npt.NDArray[np.float64] | None) -> Floats:
        every = inclusion_probabilities(frequencies, self.labels, self.config.random_negatives)
        return np.ascontiguousarray(self.shard.part(every))

    # ---- prediction -------------------------------------------------------------------------------------------------

    def prediction_index(self) -> Retriever | None:
        """What approximate prediction looks labels up in, made if it is not there yet, and kept until weights change.
        None: all labels are scored, for there are few of them, or the network has not been trained."""
        with self._making_index:
            if self.output.spec.sampled or self.output.sparse_input:
                if self._tables is None or self._tables[0] != self.version:
                    self._tables = None  # frees its memory before new tables are made
                    self._tables = self.version, prediction.make_tables(self)
                return self._tables[1]
            if self.index is None or self.recent is None or len(self.recent.rows) == 0:
                return None
            if not self.index.built:
                self.index.build(self.recent.rows)
            return self.index

    # ---- state ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Array]:
        """Every array that makes up this rank's part of the network, and of what training resumes from, by name; no
        copies."""
        layers = {f"{layer.name}.{name}": array for layer in self.layers for name, array in layer.state.items()}
        layers[CALIBRATION] = self.calibration.array
        if self.inclusion is not None:
            layers[INCLUSION] = self.inclusion
        for prefix, owner in ((TRAINING, self.cells), (PREDICTION, self.index), (RECENT, self.recent)):
            if owner is not None:
                layers |= {prefix + name: array for name, array in owner.state.items()}
        return layers

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Copies arrays given by name over the network's own; all must be there."""
        for layer in self.layers:
            layer.load_state(arrays)
        self.calibration = self._calibration({CALIBRATION: np.array(arrays[CALIBRATION])})
        if self.inclusion is not None:
            copy_array(arrays, INCLUSION, self.inclusion)
        self._load_cells(arrays)
        self.version += 1
