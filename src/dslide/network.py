"""The network: layers in a row, one training step over them, and prediction.

The step reads like the algorithm: forward through the hidden layers, the output layer's loss over its active neurons,
backward with every touched weight stepped on the way, and now and then a renewal of hash tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from .activations import Activations, Dense, Floats, Ids, Offsets, Sparse, aligned_zeros, padded
from .config import Config
from .data import SparseRows
from .errors import DataError, Diverged, ModelError
from .hashing import prediction_family
from .layers import Layer
from .sampler import Sampler

FIRST_SCALE = 0.1  # standard deviation of the first layer's weights
FULL_BELOW = 4096  # outputs up to which "auto" computes all of them
KEPT_BYTES = 64 << 20  # a batch's logits are kept from the first pass to the second if they take no more
LOGIT_BYTES = 64 << 20  # most memory that explicit logits take in prediction
PREDICTION_TABLES = 96  # for approximate prediction: 3 to 4 times as many as training uses find most of the best labels


@dataclass(frozen=True)
class Labels:
    """The batch's labels as training targets."""

    offsets: Offsets  # rows + 1
    ids: Ids
    targets: Floats


@dataclass(frozen=True)
class StepResult:
    """What a training step says of itself."""

    loss: float  # mean over rows
    active: float  # mean number of active output neurons that a row saw


class Network:
    """A network over `features` sparse inputs with `labels` outputs.

    `trainable=False` leaves optimizer state and training-time hash tables out; `weights`, a mapping of array names to
    arrays (memory-mapped ones too), takes the place of fresh weights.
    """

    def __init__(
        self, config: Config, features: int, labels: int, *, trainable: bool = True,
        weights: Mapping[str, npt.NDArray[Any]] | None = None,
    ):  # fmt: skip
        self.config, self.features, self.labels = config, features, labels
        shares = config.hidden_share or (1.0,) * len(config.hidden)
        self.layers: list[Layer] = []
        self.shares = [*shares, 1.0]
        inputs, sparse = features, True
        for i, neurons in enumerate([*config.hidden, labels]):
            is_output = i == len(config.hidden)
            sampled = self.output_mode == "lsh" if is_output else shares[i] < 1
            # Inputs of a sparse layer are taken to be normalised rows: their sum keeps the weights' own scale.
            scale = config.init_scale * (FIRST_SCALE if sparse else 1 / np.sqrt(inputs))
            given = None if weights is None else _layer_arrays(weights, f"layer{i}", inputs, neurons, sparse)
            self.layers.append(
                Layer(
                    f"layer{i}", inputs, neurons, sparse, sampled, float(scale), config,
                    int(_core.mix(config.seed, i)), trainable, given,
                )
            )  # fmt: skip
            inputs, sparse = neurons, not is_output and shares[i] < 1
        self._logits: Floats = np.empty(0, np.float32)
        self.renewed = False
        self.version = 0  # rises whenever weights change
        self._prediction: tuple[int, Sampler] | None = None  # with the version that it was made for

    @property
    def output(self) -> Layer:
        return self.layers[-1]

    @property
    def parameters(self) -> int:
        """Trainable numbers, padding not counted."""
        return sum(layer.inputs * layer.neurons + layer.neurons for layer in self.layers)

    @property
    def output_mode(self) -> str:
        """How output neurons are chosen: full, lsh or random."""
        return resolve_output(self.config, self.labels)

    # ---- training -------------------------------------------------------------------------------------------------

    def set_output_bias(self, frequencies: npt.NDArray[np.float64]) -> None:
        """Lets a network that has learned nothing yet predict every label as often as it occurs. With the
        sigmoid loss, where nearly every answer is no, steps of a usual size would take long to find that out."""
        odds = frequencies / (1 - frequencies) if self.config.loss == "sigmoid" else frequencies / frequencies.sum()
        self.output.arrays["bias"][: len(odds), 0] = np.log(odds)

    def train_step(self, x: Sparse, labels: Labels, step: int, rate: float) -> StepResult:
        """One synchronous step on a batch. Raises Diverged if a gradient is not finite."""
        self.version += 1
        if not self.renewed:
            self.renew_tables()
        for layer in self.layers:
            layer.optimizer.rate = rate
        x = self._drop_inputs(x, step)
        inputs: list[Activations] = [x]
        active_sets: list[Any] = []
        for i, layer in enumerate(self.layers[:-1]):
            active = self._hidden_active(i, inputs[-1], step)
            z = layer.forward(inputs[-1], active)
            inputs.append(self._activate(i, z, active, step))
            active_sets.append(active)

        active = self._output_active(inputs[-1], labels, step)
        fine, loss, dx = self._learn_output(inputs[-1], active, labels)
        self._check(fine, loss, self.output, step, rate)
        if self.output.sampler:
            self.output.sampler.touch(active.ids)

        for i in range(len(self.layers) - 2, -1, -1):
            layer = self.layers[i]
            assert dx is not None
            dz = self._deactivate(i, inputs[i + 1], dx, active_sets[i], step)
            fine, dx = layer.learn(inputs[i], active_sets[i], dz, want_dx=i > 0)
            self._check(fine, loss, layer, step, rate)
            if layer.sampler:
                layer.sampler.touch(active_sets[i].ids)
        return StepResult(loss / x.rows, active.mean)

    def renew_tables(self) -> int:
        """Hashes again every neuron that moved since the last renewal; returns how many."""
        self.renewed = True
        return sum(layer.renew_tables() for layer in self.layers)

    def _seed(self, step: int, purpose: int) -> int:
        return int(_core.mix(self.config.seed ^ (purpose << 48), step))

    def _drop_inputs(self, x: Sparse, step: int) -> Sparse:
        if self.config.dropout_input == 0:
            return x
        values = x.values.copy()
        _core.dropout_sparse(values, x.offsets, x.ids, self.config.dropout_input, self._seed(step, 1))
        return Sparse(x.offsets, x.ids, values)

    def _hidden_active(self, i: int, x: Activations, step: int) -> Any:
        """Active neurons of hidden layer i: hash hits, an eighth of random ones among them."""
        layer = self.layers[i]
        if layer.sampler is None:
            return layer.everything(x.rows)
        want = max(1, round(self.shares[i] * layer.neurons))
        draws = -(-want // 8)
        per_row = self.config.active_sets == "row"
        hits = layer.sampler.hits(x, max(1, (want - draws) if per_row else (want - draws) // x.rows), step)
        nothing = np.zeros(x.rows + 1, np.int64), np.zeros(0, np.int32)
        return _core.ActiveSet.sampled(
            per_row, layer.neurons, *nothing, *hits, draws, self._seed(step, 16 + i), False
        )

    def _activate(self, i: int, z: Floats, active: Any, step: int) -> Activations:
        """Sums become activations, in place."""
        if self.config.activation == "relu":
            np.maximum(z, 0, out=z)
        drop, seed = self.config.dropout_hidden, self._seed(step, 32 + i)
        if active.is_everything:
            if drop:
                _core.dropout_dense(z, self.layers[i].neurons, drop, seed)
            return Dense(z)
        offsets, ids = _slot_lists(active)
        values = z.reshape(-1)
        if drop:
            _core.dropout_sparse(values, offsets, ids, drop, seed)
        return Sparse(offsets, ids, values).without_zeros()

    def _deactivate(self, i: int, a: Activations, da: Floats, active: Any, step: int) -> Floats:
        """Gradients of activations become gradients of sums, laid out as the layer's `forward` has them."""
        drop, seed = self.config.dropout_hidden, self._seed(step, 32 + i)
        if drop:
            if isinstance(a, Dense):
                _core.dropout_dense(da, self.layers[i].neurons, drop, seed)
            else:
                _core.dropout_sparse(da, a.offsets, a.ids, drop, seed)
        if isinstance(a, Dense):
            if self.config.activation == "relu":
                da *= a.values > 0
            return da
        dz = aligned_zeros(1, active.slots)
        dz[0, _slots_of(a, active)] = da  # activations that are 0 have no gradient, or none that matters
        return dz

    def _output_active(self, x: Activations, labels: Labels, step: int) -> Any:
        config, layer, mode = self.config, self.output, self.output_mode
        if mode == "full":
            return layer.everything(x.rows)
        hits_per_row, draws = sampling_sizes(config, self.labels)
        hits: tuple[Any, Any] = (None, None)
        if layer.sampler is not None and hits_per_row:
            hits = layer.sampler.hits(x, hits_per_row, step)
        return _core.ActiveSet.sampled(
            config.active_sets == "row", layer.neurons, labels.offsets, labels.ids, *hits, draws,
            self._seed(step, 2), config.correction,
        )  # fmt: skip

    def _learn_output(self, x: Activations, active: Any, labels: Labels) -> tuple[bool, float, Floats | None]:
        """Loss (summed over rows) and step of the output layer; gradient of its input."""
        layer, scale = self.output, 1 / x.rows
        softmax = self.config.loss == "softmax"
        target = (labels.offsets, labels.ids, labels.targets)
        maximum, total = np.full(x.rows, -np.inf, np.float32), np.zeros(x.rows, np.float32)
        if isinstance(x, Dense) and not active.is_per_row:
            dx = np.empty_like(x.values)
            if softmax:
                kept = self._room_for_logits(layer.native.kept_size(active))
                layer.native.softmax_stats(x.values, active, maximum, total, kept)
                log_norm = maximum + np.log(total)
                fine, loss = layer.native.learn_softmax(
                    x.values, active, *target, log_norm, scale, dx, layer.optimizer, kept
                )
            else:
                fine, loss = layer.native.learn_sigmoid(x.values, active, *target, scale, dx, layer.optimizer)
            return fine, loss, dx
        z = layer.forward(x, active)
        slots = np.ascontiguousarray(z[:, : self.labels]).reshape(-1) if active.is_everything else z.reshape(-1)
        if softmax:
            _core.softmax_stats(active, slots, maximum, total)
            loss = _core.softmax_gradient(active, slots, *target, maximum + np.log(total), scale)
        else:
            loss = _core.sigmoid_gradient(active, slots, *target, scale)
        dz = slots.reshape((x.rows, -1) if active.is_everything else (1, -1))
        fine, back = layer.learn(x, active, dz)
        return fine, loss, back

    def _room_for_logits(self, size: int) -> Floats | None:
        """Room for the batch's logits, kept between steps; None if they would take too much."""
        if 4 * size > KEPT_BYTES:
            return None
        if len(self._logits) < size:
            self._logits = np.empty(size, np.float32)
        return self._logits

    def _check(self, fine: bool, loss: float, layer: Layer, step: int, rate: float) -> None:
        if not fine or not np.isfinite(loss):
            raise Diverged(
                f"training diverged: a gradient in {layer.name} ({layer.inputs} x {layer.neurons}) is not finite at "
                f"step {step + 1} with learning rate {rate:g}; try a smaller learning_rate"
            )

    # ---- prediction -----------------------------------------------------------------------------------------------

    def predict_topk(self, x: SparseRows, k: int) -> tuple[Ids, Floats]:
        """The k best labels of each row over all labels, best first: ids and scores, (rows, k). Scores are
        logits. Where there are fewer than k labels, ids are -1."""
        ids, scores = np.empty((len(x), k), np.int32), np.empty((len(x), k), np.float32)
        for begin, end in self._row_blocks(len(x)):
            h = self.last_hidden(x.rows(begin, end))
            if isinstance(h, Dense):
                self.output.native.topk(h.values, ids[begin:end], scores[begin:end])
            else:
                z = self.output.forward(h, self.output.everything(h.rows))[:, : self.labels]
                ids[begin:end], scores[begin:end] = _topk_of(z, k)
        return ids, scores

    def predict_topk_approximate(self, x: SparseRows, k: int) -> tuple[Ids, Floats]:
        """As `predict_topk`, but only over neurons that share a hash bucket with the row; -1 where fewer than k do."""
        sampler = self.prediction_tables()
        ids, scores = np.empty((len(x), k), np.int32), np.empty((len(x), k), np.float32)
        for begin, end in self._row_blocks(len(x)):
            h = self.last_hidden(x.rows(begin, end))
            offsets, found = sampler.candidates(h)
            if isinstance(h, Dense):
                self.output.native.topk_of_lists(h.values, offsets, found, ids[begin:end], scores[begin:end])
            else:
                active = _core.ActiveSet.sampled(True, self.labels, offsets, found, None, None, 0, 0, False)
                z = self.output.forward(h, active).reshape(-1)
                for i in range(end - begin):
                    row = slice(offsets[i], offsets[i + 1])
                    ids[begin + i], scores[begin + i] = _topk_of(z[None, row], k, found[row])
        return ids, scores

    def scores(self, x: SparseRows, labels: Ids) -> Floats:
        """Logits of given labels: (rows, len(labels))."""
        order = np.unique(labels).astype(np.int32)
        if len(order) and not 0 <= order[0] <= order[-1] < self.labels:
            raise DataError(f"label numbers must be 0 to {self.labels - 1}, not {order[0]} to {order[-1]}")
        out = np.empty((len(x), len(labels)), np.float32)
        columns = np.searchsorted(order, labels)
        for begin, end in self._row_blocks(len(x), len(order)):
            h = self.last_hidden(x.rows(begin, end))
            lists = np.zeros(h.rows + 1, np.int64)
            lists[1:] = len(order)
            active = _core.ActiveSet.sampled(False, self.labels, lists, order, None, None, 0, 0, False)
            out[begin:end] = self.output.forward(h, active).reshape(h.rows, -1)[:, columns]
        return out

    def last_hidden(self, x: SparseRows) -> Activations:
        """What the output layer sees, with every hidden neuron computed."""
        if x.columns > self.features:
            raise DataError(f"rows have {x.columns} features but the network was made for {self.features}")
        a: Activations = Sparse(x.indptr - x.indptr[0], x.indices, x.values)
        for layer, follower in zip(self.layers[:-1], self.layers[1:], strict=True):
            z = layer.forward(a, layer.everything(a.rows))
            if self.config.activation == "relu":
                np.maximum(z, 0, out=z)
            a = Dense(z) if not follower.sparse_input else Sparse.from_matrix(z[:, : layer.neurons])
        return a

    def _row_blocks(self, rows: int, wide: int = 0) -> list[tuple[int, int]]:
        """Cuts rows so that no matrix of activations (or of `wide` logits) grows past a bound."""
        widest = max([wide, *self.config.hidden] + ([self.labels] if self.output.sparse_input else []))
        size = min(1024, max(1, LOGIT_BYTES // (4 * widest)))
        return [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]

    def prediction_tables(self) -> Sampler:
        """Hash tables over the output weights as they are now, kept until weights change: not those of training, which
        lag behind on purpose, and more of them, since here every candidate counts."""
        if self._prediction is None or self._prediction[0] != self.version:
            self._prediction = None  # its memory goes before the new tables are made
            tables = self.config.tables or PREDICTION_TABLES
            config = self.config.replace(tables=tables)
            family = prediction_family(config.family, self.output.sparse_input, config.activation)
            sampler = Sampler(self.labels, self.output.inputs, family, config, config.seed)
            sampler.renew(self.output.codes)
            self._prediction = self.version, sampler
        return self._prediction[1]

    # ---- state ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Every array that makes up the network, by name; no copies."""
        return {f"{layer.name}.{name}": array for layer in self.layers for name, array in layer.arrays.items()}

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Copies arrays given by name over the network's own; all of them must be there."""
        for name, own in self.state().items():
            given = arrays.get(name)
            if given is None or given.shape != own.shape or given.dtype != own.dtype:
                found = "missing" if given is None else f"{given.dtype}{list(given.shape)}"
                raise ModelError(f"array {name} is {found}, expected {own.dtype}{list(own.shape)}")
            own[...] = given
        for layer in self.layers:
            if layer.sampler:
                layer.sampler.moved[:] = True
        self.renewed = False
        self.version += 1


def resolve_output(config: Config, labels: int) -> str:
    """What `output` stands for with this many labels: full, lsh or random."""
    if config.output != "auto":
        return config.output
    return "full" if labels <= FULL_BELOW else "lsh"


def sampling_sizes(config: Config, labels: int) -> tuple[int, int]:
    """Hash hits for each row, and random draws for the batch or each row."""
    if config.active_sets == "shared":
        hits, draws = 4, min(labels, 2048)
    else:
        hits, draws = min(labels // 8 + 1, 256), min(labels // 8 + 1, 256)
    hits = hits if config.hits < 0 else config.hits
    draws = draws if config.draws < 0 else config.draws
    return (hits if resolve_output(config, labels) == "lsh" else 0), draws


def _layer_arrays(
    weights: Mapping[str, npt.NDArray[Any]], name: str, inputs: int, neurons: int, sparse: bool
) -> dict[str, npt.NDArray[Any]]:
    """A layer's weights and bias out of a mapping, checked."""
    rows, width = (inputs, neurons) if sparse else (neurons, inputs)
    found = {}
    for which, shape in (("weights", (rows, padded(width))), ("bias", (neurons, 1))):
        array = weights.get(f"{name}.{which}")
        if array is None or array.shape != shape or array.dtype != np.float32:
            state = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise ModelError(f"array {name}.{which} is {state}, expected float32{list(shape)}")
        found[which] = array
    return found


def _slot_lists(active: Any) -> tuple[Offsets, Ids]:
    """The neurons of a sampled active set's slots, as CSR lists."""
    if active.is_per_row:
        return active.row_begin, active.ids[active.position]
    count = len(active.ids)
    return np.arange(active.rows + 1, dtype=np.int64) * count, np.tile(active.ids, active.rows)


def _slots_of(a: Sparse, active: Any) -> Offsets:
    """The slots of a sampled active set that the elements of `a`, a part of them, came from."""
    offsets, ids = _slot_lists(active)
    rows = np.repeat(np.arange(a.rows), np.diff(offsets))
    element_rows = np.repeat(np.arange(a.rows), np.diff(a.offsets))
    bound = int(ids.max(initial=0)) + 1
    return np.searchsorted(rows * bound + ids, element_rows * bound + a.ids)


def _topk_of(z: Floats, k: int, names: Ids | None = None) -> tuple[Ids, Floats]:
    """The k largest of each row, ties to the lower column; -1 where there are fewer. `names` stand for columns."""
    order = np.argsort(-z, axis=1, kind="stable")[:, :k]
    ids, scores = np.full((len(z), k), -1, np.int32), np.full((len(z), k), -np.inf, np.float32)
    ids[:, : order.shape[1]] = order if names is None else names[order]
    scores[:, : order.shape[1]] = np.take_along_axis(z, order, axis=1)
    return ids, scores
