"""The memory of a training run, computed before anything is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dslide.checkpoint.snapshot import checkpoint_memory
from dslide.config import Config
from dslide.model.calibration import NUMBERS
from dslide.model.cell_arrays import cell_bytes
from dslide.model.defaults import FEW_ROWS, ResolvedConfig, resolve
from dslide.model.discriminant import PIECE_BYTES
from dslide.model.label_prior import SCALES, has_label_prior
from dslide.model.layer import table_bytes
from dslide.model.layout import LayerSpec, layer_specs
from dslide.model.neighbour_arrays import neighbour_bytes
from dslide.model.output_losses import KEPT_BYTES
from dslide.model.prediction import LOGIT_BYTES, PRIOR_ROWS
from dslide.model.state_layout import MOMENTS
from dslide.model.storage import STORAGE
from dslide.training.linear import COSTS, WEIGHTS_PER_ROW
from dslide.util.arrays import padded
from dslide.util.memory import check_memory
from dslide.util.threads import available_cores
from dslide.util.units import format_bytes

PROGRAM_BYTES = 80_000_000  # Python, numpy and this package: 56 MB measured, more with scikit-learn
LEAST_LABELS = 8  # of a row, in the sizes of scratch buffers
MPI_BYTES = 20_000_000  # mpi4py and the MPI behind it: 17 MB measured


@dataclass(frozen=True)
class Plan:
    """Memory of a training run on each of its ranks, by part, in bytes."""

    what: str  # the network, in words
    parameters: int
    parts: dict[str, int]
    ranks: int = 1

    @property
    def bytes_total(self) -> int:
        return sum(self.parts.values())

    def check(self, ranks_here: int = 1) -> None:
        """Raises MemoryNeeded if this machine has too little memory for its `ranks_here` ranks."""
        what, advice = f"training a network with {self.what}", "smaller hidden layers need less"
        if self.ranks > 1:
            what += f" on {ranks_here} of {self.ranks} ranks"
            advice += ", and so do ranks on more machines"
        check_memory(self.bytes_total, what, advice, ranks_here)

    def lines(self) -> list[str]:
        """The plan as text."""
        parts = ", ".join(f"{format_bytes(size)} {name}" for name, size in self.parts.items() if size >= 10**6)
        each = f" on each of {self.ranks} ranks" if self.ranks > 1 else ""
        return [f"plan: {self.parameters:,} parameters; {format_bytes(self.bytes_total)} of memory{each}: {parts}"]


def plan(
    config: Config, features: int, labels: int, data_bytes: int = 0, ranks: int = 1, threads: int = 0,
    prior: bool = True, features_per_row: float = 75, keeps_best: bool = False,
    rows: int = 0, labels_per_row: float = 0.0, dense_features: int = 0, share: Fraction | None = None,
) -> Plan:  # fmt: skip
    """The memory of each rank for training on data of `data_bytes`. `threads` are those of a rank, if the options leave
    them open; `prior` is false for data without a label prior, such as streams of words; with
    `keeps_best` there is a copy of the best network in memory; of the features the last `dense_features` are dense;
    `share`: the part of the network that the rank has, where shares are not equal."""
    config = resolve(config, labels)
    threads = config.threads or threads or available_cores()
    pieces = Fraction(ranks) if share is None else 1 / share  # like this rank's the network has
    specs = layer_specs(config, features, labels)
    weights = moments = tables = 0
    for spec in specs:
        own = -(-spec.neurons // pieces)
        length, width = (spec.inputs, own) if spec.sparse_input else (own, spec.inputs)
        numbers = length * padded(width)
        weights += STORAGE[config.weights].itemsize * numbers + 4 * own + 4 * (length + own)  # biases and clocks
        moments += len(MOMENTS[config.optimizer]) * (STORAGE[config.moments].itemsize * numbers + 4 * own)
        if spec.hashing is not None:
            tables += table_bytes(config, spec, spec.hashing, pieces)
    cells, making_cells = cell_bytes(config, specs[-1], threads)
    weights += 4 * NUMBERS * -(-labels // pieces)  # the calibration
    prior_labels = min(config.prior_labels, labels) if prior and has_label_prior(config) else 0
    # an upper bound: lists by feature, and a share, a number of rows and a position for each label
    link_bytes = 8 + (4 if config.prior_learning_rate > 0 else 0) + (1 if config.prior_hits > 0 else 0)
    prior_bytes = (
        8 * (features + 1) + link_bytes * features * prior_labels // pieces + 12 * -(-labels // pieces) + 8 * SCALES
    )
    linear_bytes = count_bytes = 0
    evaluation_bytes = _evaluation_bytes(config, labels, pieces)
    if prior_labels:
        linear_bytes = _linear_bytes(config, labels, pieces, threads, rows, features_per_row, labels_per_row)
        count_bytes = _count_bytes(features, labels, threads, rows, features_per_row, labels_per_row)
    parts = {
        "weights": weights,
        "optimizer state": moments,
        "checkpoints": checkpoint_memory(weights + moments, config.checkpoint_seconds > 0),
        "label prior": prior_bytes if prior_labels else 0,
        "linear classifiers": linear_bytes,
        "neighbours": _neighbour_bytes(config, rows, labels_per_row) if linear_bytes else 0,
        # counting is done when the classifiers begin, and the others are gone when the loss is evaluated
        "counting the label prior": max(0, count_bytes - linear_bytes),
        "loss over all labels": max(0, evaluation_bytes - max(linear_bytes, count_bytes)),
        "linear discriminant": _discriminant_bytes(
            config, features, -(-labels // pieces), 0 if dense_features else data_bytes, rows, labels_per_row
        ),
        "hash tables": tables,
        "cells of hidden vectors": making_cells,
        "best network": weights + moments + cells + (prior_bytes if prior_labels else 0) if keeps_best else 0,
        "data": data_bytes,
        "work space": _work_bytes(config, specs, pieces, threads, prior_labels, features_per_row, labels_per_row)
        + _dense_bytes(config, specs[0], pieces, threads, dense_features),
        "program": PROGRAM_BYTES + (MPI_BYTES if ranks > 1 else 0),
    }
    parameters = sum(spec.parameters for spec in specs)
    hidden = f"hidden layers of {', '.join(map(str, config.hidden))}" if config.hidden else "no hidden layer"
    return Plan(f"{features:,} features, {hidden} and {labels:,} labels", parameters, parts, ranks)


def _linear_bytes(
    config: ResolvedConfig, labels: int, pieces: Fraction, threads: int, rows: int, features_per_row: float,
    labels_per_row: float,
) -> int:  # fmt: skip
    """Linear classifiers while they are trained: the rows of each label, by row and then by label, the weights, at each
    cost that is tried, and each thread's copy of the rows of one label, which can be nearly all. The scratch buffers of
    steps are free by then. Of interactions: the users of each item, and the weights, in pieces, together, and times a
    factor."""
    if config.validation == 0 and (config.linear_items or rows >= FEW_ROWS):
        return 0
    if config.linear_items:
        return round(4 * rows * (labels_per_row + 1)) + 3 * 8 * (config.linear_items + 2) * -(-labels // pieces)
    if config.linear_negatives == 0:
        return 0
    # Features and weights, one cost's both in pieces and together; an index of every 16th feature.
    weights = (8 * (len(COSTS) + 1) + len(COSTS) * 4 / 16) * WEIGHTS_PER_ROW * labels_per_row
    lists = round(rows * (12 * (config.linear_negatives + labels_per_row) + weights) / pieces)
    return lists + round(threads * 8 * rows * features_per_row)


def _neighbour_bytes(config: ResolvedConfig, rows: int, labels_per_row: float) -> int:
    """Neighbours, which all ranks keep, twice while they are put in order. There are none without held-out rows."""
    if config.neighbours == 0 or config.validation == 0:
        return 0
    return 2 * neighbour_bytes(rows, labels_per_row, config.hidden[-1])


def _count_bytes(
    features: int, labels: int, threads: int, rows: int, features_per_row: float, labels_per_row: float
) -> int:
    """The label prior while it is counted: rows by feature and by label, and each thread's sums."""
    return round(rows * (8 * features_per_row + 4 * labels_per_row)) + threads * 16 * max(features, labels)


def _evaluation_bytes(config: ResolvedConfig, labels: int, pieces: Fraction) -> int:
    """Logits over all labels, and a copy, while the loss over all labels is evaluated on test data."""
    return 2 * min(LOGIT_BYTES, 4 * PRIOR_ROWS * -(-labels // pieces)) if config.loss == "sigmoid" else 0


def _discriminant_bytes(
    config: ResolvedConfig, features: int, own: int, data_bytes: int, rows: int, labels_per_row: float
) -> int:
    """A linear discriminant while it is found: matrices of features by features, rows that are converted, labels by
    row, the scores of own labels, and a copy of all rows if some were held out."""
    if config.start == "random":
        return 0
    pieces = 4 * min(PIECE_BYTES, 8 * features * rows or PIECE_BYTES)
    scratch = 8 * 8 * features**2 + pieces + round(40 * rows * labels_per_row)
    return scratch + 4 * own * config.hidden[0] + (data_bytes if config.validation > 0 else 0)


def _dense_bytes(config: ResolvedConfig, first: LayerSpec, pieces: Fraction, threads: int, features: int) -> int:
    """Dense features of a batch, and a copy of them; the first layer's weights of these, packed for the product; and
    gradients of its neurons, as the backward product takes them."""
    if features == 0 or not first.sparse_input:
        return 8 * config.batch_size * padded(features)
    own = padded(-(-first.neurons // pieces)) + 64
    return 8 * config.batch_size * padded(features) + 4 * own * (2 * features + config.batch_size + 48 * threads)


def _work_bytes(
    config: ResolvedConfig,
    specs: list[LayerSpec],
    pieces: Fraction,
    threads: int,
    prior_labels: int,
    features_per_row: float,
    labels_per_row: float,
) -> int:
    """Scratch buffers of a training step: activations, the output layer's active set, the label prior's terms."""
    batch, labels = config.batch_size, specs[-1].neurons
    # each thread has its own gradient of a layer's input; messages are sent and received at once
    copies = 2 + threads + (4 if pieces > 1 else 0)
    activations = copies * sum(padded(spec.inputs) for spec in specs if not spec.sparse_input)  # floats of a row
    negatives, full = config.random_negatives, config.output == "full"
    hits = config.hits_per_row + (config.prior_hits if prior_labels else 0)
    known = max(LEAST_LABELS, math.ceil(labels_per_row))
    neurons = -(-labels // pieces) if full else min(labels, batch * (hits + known) + negatives) // pieces + 1
    if config.active_sets == "row" and not full:
        active = batch * (hits + negatives + known) * 40  # lists of neurons by row and rows by neuron, logits
    else:
        logits = 4 * 146 * -(-batch // 128) * (neurons + 64)  # padded, and a row more for each block
        active = 16 * neurons + (logits if logits <= KEPT_BYTES else 0)
    if prior_labels:  # each thread's sums by neuron, and the rows' terms, by thread and then together
        active += threads * 28 * neurons + 32 * batch * min(neurons, round(features_per_row * prior_labels / pieces))
        if config.prior_learning_rate > 0:  # gradients of logits
            active += 4 * batch * neurons
        if not full:  # each thread's scores of all labels; the batch's links, and those to active labels
            links = round(batch * features_per_row * prior_labels / pieces)
            active += threads * 5 * -(-labels // pieces) + 16 * links
    grouped = 2 * 36 * round(batch * features_per_row)  # a batch's features, for the first layer and the label prior
    return 4 * batch * activations + active + grouped + threads * (1 << 20)
