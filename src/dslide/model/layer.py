"""One layer of a network: its parameters in numpy memory, the native code that works on them, and, if the layer is
sampled, the LSH index of its neurons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np

from dslide import _core
from dslide._core import ActiveSet
from dslide.config import Config
from dslide.model.activations import Dense, Input, Mixed, sparse_elements
from dslide.model.active_sets import all_neurons
from dslide.model.hash_parameters import HashParameters, training_family
from dslide.model.layout import LayerSpec
from dslide.model.lsh import Codes, LshIndex, index_bytes
from dslide.model.sharding import WHOLE, Shard
from dslide.model.state_layout import CODES, MOMENTS, MOVED, ArrayLayout, array_dtype
from dslide.model.storage import SCALE, ChangeListener, checked, copy_array, narrowed, widened
from dslide.util.arrays import (
    Array,
    Floats,
    Ids,
    aligned_empty,
    aligned_records,
    aligned_zeros,
    padded,
)
from dslide.util.csr import Csr

COPIED_BYTES = 32 << 20  # most memory for weights that can't be hashed as they are stored


class Layer:
    """Parameters and native code of one layer.

    Weights over a sparse input are stored a row per input, weights over a dense input a row per neuron. The first layer
    of a network with hidden layers has a row per input, and takes both. `arrays` has every array of the layer's state
    by name. Optimizer state exists only if the layer is trained, and is interleaved with the weights row by row: one
    cache miss for all. Of the layer's `total` neurons only those of the shard are here: `neurons`, numbered from 0.

    Weights change in methods of this class only. Each of them notifies the listener before and marks moved neurons in
    the LSH index after, so that neither a snapshot nor hash tables can miss a change.
    """

    def __init__(
        self, spec: LayerSpec, config: Config, seed: int, *, scale: float = 1.0, shard: Shard = WHOLE,
        trainable: bool = True, weights: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        """`scale`: standard deviation of fresh weights; `weights`: arrays, maybe mapped, in place of fresh ones."""
        neurons = shard.count(spec.neurons)
        self.spec, self.name, self.inputs, self.sparse_input = spec, spec.name, spec.inputs, spec.sparse_input
        self.neurons, self.total = neurons, spec.neurons
        self.optimizer = _core.Optimizer(
            config.optimizer, config.beta1, config.beta2, config.epsilon, config.weight_decay
        )
        rows, width = (spec.inputs, neurons) if spec.sparse_input else (neurons, spec.inputs)
        self.arrays: dict[str, Array] = dict(weights or {})
        of_weights = self._make_parameters("weights", rows, width, padded(width), trainable, config)
        of_bias = self._make_parameters("bias", neurons, 1, 1, trainable, config)
        unit, biased = spec.is_output and config.unit_length == "both", config.output_bias or not spec.is_output
        if weights is None:
            axis = 1 if spec.sparse_input else 0
            _core.initialise(self.arrays["weights"], width, scale, seed, shard.stripe, axis)
            if unit:
                rows_of = self.arrays["weights"]
                rows_of /= np.maximum(np.linalg.norm(rows_of, axis=1, keepdims=True), 1e-30)
        self.native: Any = (
            _core.SparseLayer(of_weights, of_bias)
            if spec.sparse_input
            else _core.DenseLayer(of_weights, of_bias, config.products == "bf16", unit, biased)
        )
        self.kept_bytes = 2 if config.products == "bf16" else 4  # of a number that the first pass keeps for the second
        self.listener: ChangeListener | None = None
        self.lsh: LshIndex | None = None
        if spec.hashing is not None and trainable:
            family = training_family(config.family)
            self.lsh = LshIndex(spec.neurons, spec.inputs, family, spec.hashing, config, seed, shard)

    def _make_parameters(self, which: str, rows: int, width: int, stride: int, trainable: bool, config: Config) -> Any:
        moments = [f"{which}_{moment}" for moment in MOMENTS[config.optimizer]] if trainable else []
        missing = [name for name in (which, *moments) if name not in self.arrays]
        made = aligned_records(rows, stride, [array_dtype(config, name) for name in missing]) if missing else []
        self.arrays |= zip(missing, made, strict=True)
        clock = np.zeros(rows if trainable else 0, np.uint32)
        if trainable:
            self.arrays[f"{which}_clock"] = clock
        none = np.zeros((0, 0), np.float32)
        m1, m2 = (self.arrays.get(f"{which}_moment{i}", none) for i in (1, 2))
        return _core.Parameters(self.arrays[which], m1, m2, clock, width, self.arrays.get(which + SCALE))

    # ---- state ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Array]:
        """Every array that training resumes from, by name; no copies."""
        if self.lsh is None:
            return self.arrays
        return self.arrays | {CODES: self.lsh.tables.codes, MOVED: self.lsh.moved}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Copies arrays, by their names in the network, over the layer's own; all must be there."""
        for name, own in self.arrays.items():
            copy_array(arrays, f"{self.name}.{name}", own)
        if self.lsh is None:
            return
        own = self.lsh.tables.codes
        codes = checked(arrays, f"{self.name}.{CODES}", own.dtype, own.shape)
        self.lsh.load(codes, checked(arrays, f"{self.name}.{MOVED}", np.dtype(np.bool_), own.shape[1:]))

    def load_smaller(self, arrays: Mapping[str, Array], layouts: Mapping[str, ArrayLayout], shard: Shard) -> None:
        """Copies arrays of a layer with fewer inputs or neurons, laid out as `layouts` say, over the beginnings of the
        layer's own. Neurons have to be hashed again."""
        for name, own in self.arrays.items():
            whole = f"{self.name}.{name}"
            layout = layouts[whole]
            if layout.axis == 1:  # rows have padding behind old neurons
                saved, count = checked(arrays, whole, layout.dtype, layout.shape(shard)), shard.count(layout.neurons)
                own[: len(saved), :count] = saved[:, :count]
            else:
                copy_array(arrays, whole, own[: layout.shape(shard)[0]])
        if self.lsh is not None:
            self.lsh.forget()

    def set_bias(self, bias: Floats) -> None:
        """Sets the biases of all own neurons."""
        self._before_change("bias")
        self.arrays["bias"][: len(bias), 0] = bias

    def restart(self, weights: Floats, bias: Floats) -> None:
        """Sets weights, (own neurons, inputs), and biases; the optimizer begins anew."""
        for name in self.state:
            self._before_change(name)
        for name, array in self.arrays.items():
            if name not in ("weights", "bias"):
                array[...] = 0
        stored = self.arrays["weights"]
        rows = weights.T if self.sparse_input else weights
        stored[:, : rows.shape[1]] = narrowed(rows) if stored.dtype == np.uint16 else rows
        self.arrays["bias"][:, 0] = bias
        if self.lsh is not None:
            self.lsh.forget()

    @contextmanager
    def _changing(self, x: Input, active: ActiveSet) -> Iterator[None]:
        """Inside, weights of these inputs and neurons change."""
        if self.listener is not None:
            neurons = None if active.is_everything else active.ids
            rows = self._inputs_of(x) if self.sparse_input else neurons
            for name in self.arrays:
                self._before_change(name, neurons if name.startswith("bias") else rows)
            self._before_change(MOVED, neurons)
        yield
        if self.lsh is not None:
            self.lsh.mark_moved(active.ids)

    def _inputs_of(self, x: Input) -> Ids | None:
        """The inputs that are there in a batch; None: all."""
        if isinstance(x, Mixed):
            dense = np.arange(self.inputs - x.width, self.inputs, dtype=np.int32)
            return np.concatenate([x.sparse.indices, dense])
        return None if isinstance(x, Dense) else x.indices

    def _before_change(self, array: str, rows: Ids | None = None) -> None:
        name = f"{self.name}.{array}"
        if self.listener is not None and name in self.listener:
            self.listener.before_change(name, rows)

    # ---- forward and backward ---------------------------------------------------------------------------------------

    def everything(self, rows: int) -> ActiveSet:
        """The active set of all own neurons."""
        return all_neurons(self.neurons, rows)

    def forward(self, x: Input, active: ActiveSet) -> Floats:
        """Sums of inputs times weights plus bias: (rows, padded neurons) if everything is active, else (1, slots)."""
        width = padded(self.neurons)
        make = aligned_zeros if width > self.neurons else aligned_empty  # padding has to be 0, the rest is written
        z = make(x.rows, width) if active.is_everything else aligned_empty(1, active.slots)
        if not self.sparse_input:
            assert isinstance(x, Dense)
            shaped = z if active.is_everything or active.is_per_row else z.reshape(x.rows, -1)
            self.native.forward(x.values, active, shaped)
        else:
            sparse, dense = self._parts(x, active)
            self.native.forward(sparse.indptr, sparse.indices, sparse.values, active, z, *dense)
        return z

    def learn(self, x: Input, active: ActiveSet, dz: Floats, want_dx: bool = True) -> tuple[bool, Floats | None]:
        """Steps weights along gradients laid out as `forward` gives its sums; returns whether all gradients were
        finite, and the gradient of the input: (rows, padded inputs) for dense, a value per element for sparse input."""
        with self._changing(x, active):
            if not self.sparse_input:
                assert isinstance(x, Dense)
                dx = np.empty_like(x.values)
                shaped = dz if active.is_everything or active.is_per_row else dz.reshape(x.rows, -1)
                return self.native.learn(x.values, active, shaped, dx, self.optimizer), dx
            sparse, dense = self._parts(x, active)
            back = np.empty(len(sparse.values), np.float32) if want_dx else None
            elements = sparse.indptr, sparse.indices, sparse.values
            return self.native.learn(*elements, active, dz, back, self.optimizer, *dense, sparse.by_column), back

    def _parts(self, x: Input, active: ActiveSet) -> tuple[Csr, tuple[Floats | None, int]]:
        """Input of a layer that has its weights by input: its sparse elements, and a matrix of the last inputs with how
        many these are. Sampled neurons take sparse elements only."""
        if not active.is_everything:
            x = sparse_elements(x, self.inputs)
        if isinstance(x, Csr):
            return x, (None, 0)
        if isinstance(x, Mixed):
            return x.sparse, (x.dense.values, x.width)
        none = Csr(np.zeros(x.rows + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
        return none, (x.values, self.inputs)

    # ---- the output layer behind dense activations: loss and step fused (src/core/layers/) -------------------------

    def softmax_forward(
        self, x: Dense, active: ActiveSet, labels: Any, reference: Floats, total: Floats, dx: Floats | None = None,
        kept: Floats | None = None, begin: int = 0, end: int | None = None,
    ) -> None:  # fmt: skip
        """First pass over rows begin to end: references and sums of exponentials, and what they add to `dx`."""
        self.native.softmax_forward(x.values, active, labels, reference, total, dx, kept, begin, end)

    def softmax_backward(
        self, active: ActiveSet, labels: Any, reference: Floats, log_norm: Floats, scale: float, dx: Floats | None,
        begin: int, end: int,
    ) -> float:  # fmt: skip
        """Completes the gradient of the input, if it is wanted, for rows begin to end; returns their loss."""
        loss: float = self.native.softmax_backward(active, labels, reference, log_norm, scale, dx, begin, end)
        return loss

    def softmax_step(
        self, x: Dense, active: ActiveSet, labels: Any, log_norm: Floats, scale: float, kept: Floats | None
    ) -> bool:
        """Second pass: steps the weights; returns whether all gradients were finite."""
        with self._changing(x, active):
            finite: bool = self.native.softmax_step(x.values, active, labels, log_norm, scale, self.optimizer, kept)
        return finite

    def sigmoid_learn(
        self, x: Dense, active: ActiveSet, labels: Any, scale: float, dx: Floats | None
    ) -> tuple[bool, float]:
        """Loss, gradient of the input and step in one pass; returns whether all gradients were finite, and the loss."""
        with self._changing(x, active):
            finite, loss = self.native.sigmoid_learn(x.values, active, labels, scale, dx, self.optimizer)
        return finite, loss

    def sigmoid_backward(
        self,
        x: Dense,
        active: ActiveSet,
        labels: Any,
        scale: float,
        dx: Floats | None,
        kept: Floats,
        begin: int,
        end: int,
    ) -> float:
        """Gradient of the input of rows begin to end, without a step; returns their loss."""
        loss: float = self.native.sigmoid_backward(x.values, active, labels, scale, dx, kept, begin, end)
        return loss

    def sigmoid_step(self, x: Dense, active: ActiveSet, kept: Floats) -> bool:
        """Steps the weights along the gradients that were kept; returns whether all were finite."""
        with self._changing(x, active):
            finite: bool = self.native.sigmoid_step(x.values, active, kept, self.optimizer)
        return finite

    # ---- hash tables ------------------------------------------------------------------------------------------------

    def rebuild_tables(self) -> int:
        """Hashes the neurons that moved since the last time; returns how many those were."""
        if self.lsh is None:
            return 0
        self._before_change(CODES)
        self._before_change(MOVED)
        return self.lsh.rebuild(self.codes)

    def codes(self, functions: _core.HashFunctions, ids: Ids) -> Codes:
        """Bucket numbers of some neurons, (ids, tables)."""
        weights = self.arrays["weights"]
        if not self.sparse_input and weights.dtype == np.float32:
            return functions.dense(weights[:, : self.inputs], ids)
        step = max(1, COPIED_BYTES // (4 * self.inputs))
        pieces = [ids[begin : begin + step] for begin in range(0, len(ids), step)]
        return np.concatenate([functions.dense(np.ascontiguousarray(self.vectors(piece))) for piece in pieces])

    def vectors(self, ids: Ids) -> Floats:
        """The weights of some own neurons as float32, (ids, inputs)."""
        weights, scale = self.arrays["weights"], self.arrays.get("weights" + SCALE)
        if self.sparse_input:
            return np.asarray(widened(weights[:, ids], scale).T)
        return widened(weights[ids, : self.inputs], None if scale is None else scale[ids])

    def input_vectors(self, ids: Ids) -> Floats:
        """The weights of some inputs of a layer over sparse input as float32, (ids, own neurons)."""
        weights, scale = self.arrays["weights"], self.arrays.get("weights" + SCALE)
        return widened(weights[ids, : self.neurons], None if scale is None else scale[ids])


def table_bytes(config: Config, spec: LayerSpec, parameters: HashParameters, pieces: int | Fraction = 1) -> int:
    """Memory of an LSH index over one of so many pieces of a layer."""
    own = -(-spec.neurons // pieces)
    as_stored = config.weights == "float32" and not spec.sparse_input  # else weights are copied to be hashed
    return index_bytes(parameters, own, 0 if as_stored else min(COPIED_BYTES, 4 * spec.inputs * own))
