"""The network: its layers, its state, and what can be done with it.

Of every layer a rank holds its own neurons only (sharding.py). Methods that compute are called on all ranks alike, with
the same rows, and give every rank the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from dslide.comm import Communicator, solo
from dslide.comm.votes import Vote
from dslide.config import Config
from dslide.data import Dataset, Features, SparseRows, sparse_part
from dslide.errors import ConfigError, ModelError, known_to_all
from dslide.model import prediction
from dslide.model.activations import Dense, Input
from dslide.model.cell_arrays import RECENT, VALUES
from dslide.model.collectives import Collectives
from dslide.model.defaults import ResolvedConfig, resolve
from dslide.model.discriminant import Discriminant, label_sums
from dslide.model.growth import larger_prior, with_counts
from dslide.model.inputs import MOST_LINEAR, network_input
from dslide.model.label_prior import LabelPrior, has_trained_prior, prior_arrays
from dslide.model.layer import Layer
from dslide.model.layout import LayerSpec, layer_specs
from dslide.model.linear import LinearClassifiers
from dslide.model.neighbour_arrays import NONE as NO_NEIGHBOURS
from dslide.model.neighbours import Neighbours
from dslide.model.output_network import OutputNetwork
from dslide.model.random_streams import layer_seed
from dslide.model.sharding import Shard
from dslide.model.state_layout import array_dtype, array_layouts
from dslide.model.storage import SCALE, ChangeListener, checked
from dslide.model.train_step import StepResult, TrainStep
from dslide.util.arrays import Array, Floats, Ids, padded
from dslide.util.csr import Csr

HIDDEN_ROWS = 2048  # whose hidden vectors are computed at once
FIRST_SCALE = 0.1  # standard deviation of the first layer's weights
# Root mean square length of hidden activations along a discriminant's directions. The longer they are, the further a
# step of the output weights goes: further if these begin at 0 than if they begin as the discriminant's scores.
LENGTH, LENGTH_EXCLUSIVE = 10.0, 3.0


class Network(OutputNetwork):
    """A network over `features` sparse inputs with `labels` outputs.

    `trainable=False` leaves out optimizer state and the hash tables of training; `weights`, a mapping of array names to
    arrays (memory-mapped ones too), takes the place of fresh weights. With a communicator of several ranks the network
    is split by neuron over them, and `weights` are this rank's.
    """

    def __init__(
        self, config: Config, features: int, labels: int, *, comm: Communicator | None = None, trainable: bool = True,
        weights: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        config = resolve(config, labels)
        if trainable and config.weights == "int8":
            raise known_to_all(
                ConfigError(
                    "weights: int8 is for prediction only; train with float32, then make a small model by export"
                )
            )
        if not config.hidden and features > MOST_LINEAR:
            most = f"at most {MOST_LINEAR:,} features, not {features:,}: each would be multiplied with every label"
            raise known_to_all(ConfigError(f"hidden = none: is for rows of {most}"))
        collectives = Collectives(comm or solo(), config.wire)
        shard = collectives.shard
        layers: list[Layer] = []
        for spec in layer_specs(config, features, labels):
            shard.check(spec.neurons, "labels" if spec.is_output else "neurons of a hidden layer")
            layers.append(
                Layer(
                    spec, config, layer_seed(config.seed, spec.index), scale=initial_scale(config, spec),
                    shard=shard, trainable=trainable,
                    weights=None if weights is None else layer_weights(weights, spec, config, shard),
                )
            )  # fmt: skip
        super().__init__(
            config,
            labels,
            collectives,
            layers,
            trainable=trainable,
            weights=weights,
            passes_gradient=bool(config.hidden),
        )
        self.features = features
        self._neighbours: Neighbours | None = None  # made of the prior's arrays
        self.prior = None if weights is None else self._saved_prior(prior_arrays(weights))
        # [labels]: whose linear classifiers stay while a network that grew is trained; None: no label's do
        self.kept_linear: npt.NDArray[np.bool_] | None = None
        self.linear_cost = 0.0  # of errors of the kept ones, which others are trained with; 0: is to be found
        self.step = TrainStep(self)

    @property
    def linear(self) -> LinearClassifiers | None:
        """Linear classifiers that count in prediction."""
        return None if self.prior is None else self.prior.linear

    @property
    def neighbours(self) -> Neighbours | None:
        """Training rows whose labels count in prediction."""
        arrays = None if self.prior is None else self.prior.neighbours
        if arrays is None:
            return None
        made = self._neighbours
        if made is None or made.arrays["begin"] is not arrays["begin"]:
            made = self._neighbours = Neighbours(arrays, self.labels, self.config.neighbours)
        return made

    def set_neighbours(self, neighbours: Neighbours | None) -> None:
        """Sets the training rows whose labels count in prediction, or removes them."""
        if self.prior is not None and (neighbours is not None or self.prior.neighbours is not None):
            self.prior.set_neighbours(NO_NEIGHBOURS if neighbours is None else neighbours.arrays)
            self._neighbours = neighbours

    @property
    def parameters(self) -> int:
        """Trainable numbers on all ranks together, padding not counted."""
        return sum(layer.spec.parameters for layer in self.layers)

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
        super().begin_step(step, rate)
        self.set_neighbours(None)
        if self.prior is not None and self.kept_linear is None:
            self.prior.set_linear(None)

    def reconfigure(self, config: Config) -> None:
        """Uses other options from now on. Those that shape the network must be the same."""
        self.config = resolve(config, self.labels)
        self.collectives.wire = config.wire

    def set_label_prior(self, x: Features, y: SparseRows, same: bool) -> None:
        """Counts the label prior, of sparse features, in training data; `same`: features and labels are the same
        items."""
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
        hidden.restart(shard.part(directions), shard.part(offset))
        weights, bias = np.zeros((output.neurons, hidden.total), np.float32), np.zeros(output.neurons)
        known = shard.part(self.loss.initial_bias(data.label_frequencies()))
        bias[: len(known)] = known
        counts = shard.part(data.label_counts)
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
        -1.

        Parameters
        ----------
        x : rows (rows, features)
            What to predict for.
        k : int
            Labels for each row.
        exclude : SparseRows
            Labels to leave out of each row.

        Returns
        -------
        ids : array (rows, k) of int
            Numbers of labels.
        scores : array (rows, k) of float32
        """
        return prediction.predict_topk(self, x, k, exclude)

    def predict_topk_approximate(self, x: Features, k: int, exclude: SparseRows | None = None) -> tuple[Ids, Floats]:
        """As `predict_topk`, but only over labels that are looked up for the row or that the label prior leads to; -1
        where these are fewer than k.

        Parameters
        ----------
        x, k, exclude : as in `predict_topk`

        Returns
        -------
        ids, scores : as in `predict_topk`
        """
        return prediction.predict_topk_approximate(self, x, k, exclude)

    def hidden_of(self, x: Features, rows: npt.NDArray[np.integer]) -> Iterator[Dense]:
        """The input of the output layer for some rows, block by block. Ranks call it together."""
        for begin in range(0, len(rows), HIDDEN_ROWS):
            h = prediction.last_hidden(self, x.take(rows[begin : begin + HIDDEN_ROWS]))
            assert isinstance(h, Dense)
            yield h

    def scores(self, x: Features, labels: Ids) -> Floats:
        """Logits of given labels, calibrated if training held out rows for that: (rows, len(labels)).

        Parameters
        ----------
        x : rows (rows, features)
        labels : array of int
            Numbers of labels.

        Returns
        -------
        array (rows, len(labels)) of float32
        """
        return prediction.scores(self, x, labels)

    def exact_loss(self, x: Features, y: SparseRows) -> float:
        """The mean loss of rows with the given label weights, over all labels and without sampling. Softmax:
        cross-entropy of the rows that have labels; sigmoid: binary cross-entropy, summed over labels, of all rows.
        Logits are not calibrated here. Labels that the network has no neurons for don't count.

        Parameters
        ----------
        x : rows (rows, features)
        y : SparseRows
            Weights of the labels of each row.

        Returns
        -------
        float
        """
        total, rows = self.exact_loss_sum(x, y)
        return total / rows if rows else float("nan")

    def exact_loss_sum(self, x: Features, y: SparseRows) -> tuple[float, int]:
        """The sum whose mean is `exact_loss`, and over how many rows it goes."""
        return prediction.exact_loss_sum(self, x, y)

    # ---- state ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Array]:
        """Every array that makes up this rank's part of the network, and of what training resumes from, by name; no
        copies.

        Returns
        -------
        dict of arrays
        """
        return super().state() | ({} if self.prior is None else self.prior.state())

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Copies arrays given by name over the network's own; all must be there. The label prior is the given one, or
        none.

        Parameters
        ----------
        arrays : dict of arrays
            As `state` of a network with the same options has them.
        """
        super().load_state(arrays)
        self.prior = self._saved_prior({name: np.array(array) for name, array in prior_arrays(arrays).items()})

    def load_smaller(self, arrays: Mapping[str, Array], features: int, labels: int) -> None:
        """Takes over what a network of the same options with fewer features or labels has learned; `arrays` as its
        `state` gives them. Ranks call it together."""
        layouts = array_layouts(self.config, features, labels)
        for layer in self.layers:
            layer.load_smaller(arrays, layouts, self.shard)
        if saved := prior_arrays(arrays):
            self.prior = self._saved_prior(larger_prior(saved, self.features, self.output.neurons, self.collectives))
        if self.recent is not None and RECENT + VALUES in arrays:
            self.recent.load(arrays)
            if self.cells is not None and len(self.recent.rows):  # to look up in from the first step on
                self.cells.build(self.recent.rows)
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
        bias = self.shard.part(self.loss.initial_bias(frequencies)).astype(np.float32)
        known = self.shard.count(first)
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
        prior = LabelPrior.of_state(arrays, self.features, self.output.neurons, self.config)
        try:
            near = prior.neighbours
            self._neighbours = None if near is None else Neighbours(near, self.labels, self.config.neighbours)
        except ValueError as error:
            raise ModelError(f"the neighbours of the network are damaged: {error}") from None
        return prior


def layer_weights(
    weights: Mapping[str, Array], spec: LayerSpec, config: ResolvedConfig, shard: Shard
) -> dict[str, Array]:
    """A layer's weights and bias out of a mapping, checked."""
    neurons = shard.count(spec.neurons)
    rows, width = (spec.inputs, neurons) if spec.sparse_input else (neurons, spec.inputs)
    shapes = {"weights": (rows, padded(width)), "bias": (neurons, 1)}
    if config.weights == "int8":
        shapes[f"weights{SCALE}"] = (rows, 1)
    return {
        which: checked(weights, f"{spec.name}.{which}", array_dtype(config, which), shape)
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
