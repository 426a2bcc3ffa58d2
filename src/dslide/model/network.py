"""The network: its layers, its state, and what can be done with it.

Of every layer a rank holds its own neurons only (sharding.py). Methods that compute are called on all ranks alike, with
the same rows, and give every rank the same result.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dslide.comm import Communicator, solo
from dslide.comm.votes import Vote
from dslide.config import Config
from dslide.data import Dataset, DenseRows, Features, SparseRows, sparse_part
from dslide.errors import ConfigError, DataError, known_to_all
from dslide.model import prediction
from dslide.model.activations import Input
from dslide.model.calibration import NAME as CALIBRATION
from dslide.model.calibration import Calibration
from dslide.model.cell_arrays import (
    PREDICTION,
    RECENT,
    TRAINING,
    VALUES,
    has_prediction_cells,
    has_training_cells,
    prediction_labels,
    training_labels,
)
from dslide.model.cells import Cells, RecentRows
from dslide.model.collectives import Collectives
from dslide.model.defaults import ResolvedConfig, resolve
from dslide.model.discriminant import Discriminant, label_sums
from dslide.model.growth import larger_prior, with_counts
from dslide.model.inputs import MOST_LINEAR, network_input
from dslide.model.label_prior import LabelPrior, has_trained_prior, prior_arrays
from dslide.model.layer import Layer
from dslide.model.layout import LayerSpec, layer_specs
from dslide.model.linear import LinearClassifiers
from dslide.model.negatives import NAME as INCLUSION
from dslide.model.negatives import by_frequency, inclusion_probabilities
from dslide.model.output_losses import OUTPUT_LOSSES
from dslide.model.random_streams import layer_seed
from dslide.model.retriever import Retriever
from dslide.model.sharding import Shard
from dslide.model.state_layout import array_dtype, array_layouts
from dslide.model.storage import SCALE, ChangeListener, checked, copy_array
from dslide.model.train_step import StepResult, TrainStep
from dslide.util.arrays import Array, Floats, Ids, padded
from dslide.util.csr import Csr

FIRST_SCALE = 0.1  # standard deviation of the first layer's weights
# Root mean square length of hidden activations along a discriminant's directions. The longer they are, the further a
# step of the output weights goes: further if these begin at 0 than if they begin as the discriminant's scores.
LENGTH, LENGTH_EXCLUSIVE = 10.0, 3.0


class Network:
    """A network over `features` sparse inputs with `labels` outputs.

    `trainable=False` leaves out optimizer state and the hash tables of training; `weights`, a mapping of array names to
    arrays (memory-mapped ones too), takes the place of fresh weights. With a communicator of several ranks the network
    is split by neuron over them, and `weights` are this rank's.
    """

    def __init__(
        self, config: Config, features: int, labels: int, *, comm: Communicator | None = None, trainable: bool = True,
        weights: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        self.config = config = resolve(config, labels)
        if trainable and config.weights == "int8":
            raise known_to_all(
                ConfigError(
                    "weights: int8 is for prediction only; train with float32, then make a small model by export"
                )
            )
        if not config.hidden and features > MOST_LINEAR:
            most = f"at most {MOST_LINEAR:,} features, not {features:,}: each would be multiplied with every label"
            raise known_to_all(ConfigError(f"hidden = none: is for rows of {most}"))
        self.features, self.labels = features, labels
        self.comm = comm or solo()
        self.collectives = Collectives(self.comm, config.wire)
        self.shard: Shard = self.collectives.shard
        self.layers: list[Layer] = []
        for spec in layer_specs(config, features, labels):
            if spec.neurons < self.shard.size:
                what = "labels" if spec.is_output else "neurons of a hidden layer"
                raise known_to_all(
                    ConfigError(f"{spec.neurons} {what} can't be split over {self.shard.size} ranks; use fewer ranks")
                )
            self.layers.append(
                Layer(
                    spec, config, layer_seed(config.seed, spec.index), scale=initial_scale(config, spec),
                    shard=self.shard, trainable=trainable,
                    weights=None if weights is None else self._layer_weights(weights, spec),
                )
            )  # fmt: skip
        self.loss = OUTPUT_LOSSES[config.loss](self.output, self.collectives, passes_gradient=bool(config.hidden))
        self.prior = None if weights is None else self._saved_prior(prior_arrays(weights))
        self.calibration = self._calibration(weights)
        self.inclusion: Floats | None = None  # (own labels): probability of being a random negative; None: all alike
        if trainable and by_frequency(config):
            self.inclusion = self._inclusion(None)
        self._make_cells(weights, trainable)
        self.keeps_linear = False  # whether linear classifiers stay while the network is trained
        self.version = 0  # incremented whenever weights change
        self.step = TrainStep(self)
        self._tables: tuple[int, Retriever] | None = None  # hash tables for prediction, and the version they are of
        self._making_index = threading.Lock()

    @property
    def output(self) -> Layer:
        """The output layer."""
        return self.layers[-1]

    @property
    def linear(self) -> LinearClassifiers | None:
        """Linear classifiers that count in prediction."""
        return None if self.prior is None else self.prior.linear

    @property
    def parameters(self) -> int:
        """Trainable numbers on all ranks together, padding not counted."""
        return sum(layer.spec.parameters for layer in self.layers)

    @property
    def retriever(self) -> Retriever | None:
        """What training looks output neurons up in."""
        return self.output.lsh or self.cells

    def _make_cells(self, weights: Mapping[str, Array] | None, trainable: bool) -> None:
        """Cells that training and prediction look output neurons up in, and what they are made of; None: without."""
        config, spec = self.config, self.output.spec
        self.cells = self.index = self.recent = None
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

    # ---- training ---------------------------------------------------------------------------------------------------

    def input_of(self, x: Features | Input) -> Input:
        """Rows as the first layer takes them."""
        return network_input(x, self.layers[0], self.config)

    def train_step(
        self, x: Features | Input, targets: Csr, step: int, rate: float, vote: Vote = Vote.NONE
    ) -> StepResult:
        """One synchronous step on a batch (train_step.py); `targets` as `loss.targets` makes them. Raises Diverged if a
        gradient is not finite."""
        return self.step(self.input_of(x), targets, step, rate, vote)

    def begin_step(self, step: int, rate: float) -> None:
        """What comes before a step: hash tables exist, the learning rate is set."""
        self.version += 1
        self.calibration.reset()
        if self.index is not None and self.index.built:
            self.index.forget()
        if self.prior is not None and not self.keeps_linear:
            self.prior.set_linear(None)
        self.comm.step = step + 1
        for layer in self.layers:
            if layer.lsh is not None and not layer.lsh.built:
                layer.rebuild_tables()
            layer.optimizer.rate = rate

    def rebuild_tables(self) -> int:
        """Brings what is looked up in training up to date with the weights; returns how many neurons were hashed."""
        if self.cells is not None and self.recent is not None and len(self.recent.rows):
            self.cells.build(self.recent.rows)
        return sum(layer.rebuild_tables() for layer in self.layers)

    def reconfigure(self, config: Config) -> None:
        """Uses other options from now on. Those that shape the network must be the same."""
        self.config = resolve(config, self.labels)
        self.collectives.wire = config.wire

    def set_output_bias(self, frequencies: npt.NDArray[np.float64]) -> None:
        """Lets an untrained network predict every label as often as it occurs."""
        if not self.config.output_bias:
            return
        self.output.set_bias(self.loss.initial_bias(frequencies)[self.shard.own].astype(np.float32))

    def set_negatives(self, frequencies: npt.NDArray[np.float64]) -> None:
        """Samples negatives by how often labels occur, if the options say so."""
        if self.inclusion is not None:
            self.inclusion = self._inclusion(frequencies)

    def _inclusion(self, frequencies: npt.NDArray[np.float64] | None) -> Floats:
        every = inclusion_probabilities(frequencies, self.labels, self.config.random_negatives)
        return np.ascontiguousarray(every[self.shard.own])

    def set_label_prior(self, x: Features, y: SparseRows, same: bool) -> None:
        """Counts the label prior, of sparse features, in training data; `same`: features and labels are the same
        items."""
        if isinstance(x, DenseRows):
            raise DataError("prior_labels: a label prior is for sparse features, and these rows are dense")
        self.prior = LabelPrior.count(sparse_part(x), y, self.features, self.labels, self.config, self.shard, same)

    def set_discriminant(self, data: Dataset) -> None:
        """Starts from the linear discriminant of training data: hidden neurons are its directions, and stay so. Where
        labels exclude each other, output neurons are its scores of labels; else their weights begin at 0."""
        hidden, output, shard = self.layers[0], self.output, self.shard
        found = Discriminant.of_all_ranks(self.comm, data.x, data.y, hidden.total)
        exclusive = self.loss.needs_labels
        factor = found.length / (LENGTH_EXCLUSIVE if exclusive else LENGTH)
        kept = len(found.spread)
        directions = np.zeros((hidden.total, self.features), np.float32)  # 0: neurons that are not needed
        directions[:kept, : data.features] = found.directions.T / factor
        offset = np.zeros(hidden.total, np.float32)
        offset[:kept] = -found.offset / factor
        hidden.restart(directions[shard.own], offset[shard.own])
        weights, bias = np.zeros((output.neurons, hidden.total), np.float32), np.zeros(output.neurons)
        known = self.loss.initial_bias(data.label_frequencies())[shard.own]
        bias[: len(known)] = known
        counts = data.label_counts[shard.own]
        for own, sums in label_sums(data.x, data.y, shard) if exclusive else ():
            scores, offsets = found.scores(sums, counts[own])
            weights[own, :kept] = factor * scores
            bias[own] += offsets
        output.restart(weights, bias.astype(np.float32))
        self.calibration.reset()
        if self.index is not None:
            self.index.forget()
        self.version += 1

    # ---- prediction -------------------------------------------------------------------------------------------------

    def predict_topk(self, x: Features, k: int, exclude: SparseRows | None = None) -> tuple[Ids, Floats]:
        """The k best labels of each row over all labels, best first: ids and scores, (rows, k). Scores are logits,
        calibrated if training held out rows for that, or with ranking = propensity logarithms of chance times worth.
        Labels that the row has in `exclude`, with any value, are left out. Where fewer than k labels are left, ids are
        -1."""
        return prediction.predict_topk(self, x, k, exclude)

    def predict_topk_approximate(self, x: Features, k: int, exclude: SparseRows | None = None) -> tuple[Ids, Floats]:
        """As `predict_topk`, but only over labels that are looked up for the row or that the label prior leads to; -1
        where these are fewer than k."""
        return prediction.predict_topk_approximate(self, x, k, exclude)

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

    def scores(self, x: Features, labels: Ids) -> Floats:
        """Logits of given labels, calibrated if training held out rows for that: (rows, len(labels))."""
        return prediction.scores(self, x, labels)

    def exact_loss(self, x: Features, y: SparseRows) -> float:
        """The mean loss of rows with the given label weights, over all labels and without sampling. Softmax:
        cross-entropy of the rows that have labels; sigmoid: binary cross-entropy, summed over labels, of all rows.
        Logits are not calibrated here. Labels that the network has no neurons for don't count."""
        total, rows = self.exact_loss_sum(x, y)
        return total / rows if rows else float("nan")

    def exact_loss_sum(self, x: Features, y: SparseRows) -> tuple[float, int]:
        """The sum whose mean is `exact_loss`, and over how many rows it goes."""
        return prediction.exact_loss_sum(self, x, y)

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
        return layers | ({} if self.prior is None else self.prior.state())

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Copies arrays given by name over the network's own; all must be there. The label prior is the given one, or
        none."""
        for layer in self.layers:
            layer.load_state(arrays)
        self.prior = self._saved_prior({name: np.array(array) for name, array in prior_arrays(arrays).items()})
        self.calibration = self._calibration({CALIBRATION: np.array(arrays[CALIBRATION])})
        if self.inclusion is not None:
            copy_array(arrays, INCLUSION, self.inclusion)
        self._load_cells(arrays)
        self.version += 1

    def load_smaller(self, arrays: Mapping[str, Array], features: int, labels: int) -> None:
        """Takes over what a network of the same options with fewer features or labels has learned; `arrays` as its
        `state` gives them."""
        layouts = array_layouts(self.config, features, labels)
        for layer in self.layers:
            layer.load_smaller(arrays, layouts, self.shard)
        if saved := prior_arrays(arrays):
            self.prior = self._saved_prior(larger_prior(saved, self.features, self.output.neurons))
        if self.recent is not None and RECENT + VALUES in arrays:
            self.recent.load(arrays)
        self.calibration.reset()
        self.version += 1

    def add_counts(self, x: Features, y: SparseRows, frequencies: npt.NDArray[np.float64], rows: int) -> None:
        """Counts further rows: in the label prior, and for negatives. `frequencies` are those of labels in all `rows`
        so far."""
        self.set_negatives(frequencies)
        if self.prior is not None:
            self.prior = with_counts(self.prior, sparse_part(x), y, self.labels, rows, self.config, self.comm)

    def set_new_bias(self, frequencies: npt.NDArray[np.float64], first: int) -> None:
        """Lets the network predict labels from number `first` on as often as they occur."""
        if not self.config.output_bias:
            return
        bias = self.loss.initial_bias(frequencies)[self.shard.own].astype(np.float32)
        known = len(range(self.shard.rank, first, self.shard.size))
        bias[:known] = self.output.arrays["bias"][:known, 0]
        self.output.set_bias(bias)

    def watch(self, listener: ChangeListener | None) -> None:
        """From now on the listener is notified before every change of the network's arrays; None: nobody is."""
        for layer in self.layers:
            layer.listener = listener
        if self.recent is not None:
            self.recent.listener = listener
        if self.prior is not None:
            self.prior.listener = listener

    def _saved_prior(self, arrays: Mapping[str, Array]) -> LabelPrior | None:
        if not arrays:
            return None
        return LabelPrior.of_state(arrays, self.features, self.output.neurons, self.config)

    def _calibration(self, arrays: Mapping[str, Array] | None) -> Calibration:
        return Calibration(self.output.neurons, self.config.loss == "softmax", arrays)

    def _layer_weights(self, weights: Mapping[str, Array], spec: LayerSpec) -> dict[str, Array]:
        """A layer's weights and bias out of a mapping, checked."""
        neurons = self.shard.count(spec.neurons)
        rows, width = (spec.inputs, neurons) if spec.sparse_input else (neurons, spec.inputs)
        shapes = {"weights": (rows, padded(width)), "bias": (neurons, 1)}
        if self.config.weights == "int8":
            shapes[f"weights{SCALE}"] = (rows, 1)
        return {
            which: checked(weights, f"{spec.name}.{which}", array_dtype(self.config, which), shape)
            for which, shape in shapes.items()
        }


def initial_scale(config: ResolvedConfig, spec: LayerSpec) -> float:
    """The standard deviation of a layer's initial weights. Output weights beside a label prior that is trained, and of
    linear classifiers, begin at 0, so that labels which are rarely seen add no noise; unless they are hashed or of
    length 1, which needs them to differ."""
    if spec.sparse_input:  # rows are taken to be normalised: their sum keeps the weights' own scale
        return config.init_scale * FIRST_SCALE
    must_differ = spec.sampled or config.unit_length == "both"
    if spec.is_output and not must_differ and (has_trained_prior(config) or not config.hidden):
        return 0.0
    return config.init_scale / float(np.sqrt(spec.inputs))
