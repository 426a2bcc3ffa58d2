"""One layer of a network: its parameters in numpy memory, the native code that works on them, and, if the layer is
sampled, the hash tables that find its active neurons."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.config import Config
from dslide.model.activations import (
    Activations,
    Dense,
    Floats,
    Ids,
    Sparse,
    aligned_empty,
    aligned_records,
    aligned_zeros,
    padded,
)
from dslide.model.hash_parameters import training_family
from dslide.model.lsh import Codes, LshIndex
from dslide.model.sharding import WHOLE, Shard
from dslide.model.state_layout import CODES, MOMENTS, MOVED, array_dtype
from dslide.model.storage import ChangeListener, widened

COPIED_BYTES = 32 << 20  # most memory for weights that can't be hashed as they are stored


class Layer:
    """Parameters and native code of one layer.

    Weights over a sparse input are stored a row per input, weights over a dense input a row per neuron. `arrays` names
    every array that makes up the layer's state. Optimizer state is there only if the layer is to be trained, and lies
    beside the numbers it is about, row by row: a row that is far from others is gone to once. Of the layer's neurons,
    `total` in all, only those of the shard are here: `neurons`, numbered from 0.
    """

    def __init__(
        self, name: str, inputs: int, total: int, sparse_input: bool, sampled: bool, scale: float, config: Config,
        seed: int, trainable: bool = True, weights: dict[str, npt.NDArray[Any]] | None = None, shard: Shard = WHOLE,
    ):  # fmt: skip
        neurons = shard.count(total)
        self.name, self.inputs, self.neurons, self.total = name, inputs, neurons, total
        self.sparse_input, self.sampled = sparse_input, sampled
        self.optimizer = _core.Optimizer(
            config.optimizer, config.beta1, config.beta2, config.epsilon, config.weight_decay
        )
        rows, width = (inputs, neurons) if sparse_input else (neurons, inputs)
        self.arrays: dict[str, npt.NDArray[Any]] = dict(weights or {})
        of_weights = self._make_parameters("weights", rows, width, padded(width), trainable, config)
        of_bias = self._make_parameters("bias", neurons, 1, 1, trainable, config)
        if weights is None:
            axis = 1 if sparse_input else 0
            _core.initialise(self.arrays["weights"], width, scale, seed, shard.rank, shard.size, axis)
        self.native: Any = (
            _core.SparseLayer(of_weights, of_bias)
            if sparse_input
            else _core.DenseLayer(of_weights, of_bias, config.products == "bf16")
        )
        self.kept_bytes = 2 if config.products == "bf16" else 4  # of a number kept from the first pass to the second
        self.snapshot: ChangeListener | None = None  # is told what is about to change
        family = training_family(config.family)
        self.lsh = LshIndex(total, inputs, family, config, seed, shard) if sampled and trainable else None

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
        return _core.Parameters(self.arrays[which], m1, m2, clock, width)

    @property
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Every array that training goes on from, by name; no copies."""
        if self.lsh is None:
            return self.arrays
        return self.arrays | {CODES: self.lsh.tables.codes, MOVED: self.lsh.moved}

    def before_step(self, x: Activations, active: Any) -> None:
        """To be called before weights of these inputs and neurons are changed."""
        if self.snapshot is None:
            return
        neurons = None if active.is_everything else active.ids
        rows = x.ids if self.sparse_input and isinstance(x, Sparse) else neurons
        for name in self.arrays:
            self._before_change(name, neurons if name.startswith("bias") else rows)
        self._before_change(MOVED, neurons)

    def _before_change(self, array: str, rows: Ids | None = None) -> None:
        name = f"{self.name}.{array}"
        if self.snapshot is not None and name in self.snapshot:
            self.snapshot.before_change(name, rows)

    def everything(self, rows: int) -> Any:
        """The active set of all neurons."""
        return _core.ActiveSet.everything(self.neurons, rows)

    def forward(self, x: Activations, active: Any) -> Floats:
        """Sums of inputs times weights plus bias: (rows, padded neurons) if everything is active, else (1, slots)."""
        width = padded(self.neurons)
        make = aligned_zeros if width > self.neurons else aligned_empty  # padding has to be 0, the rest is written
        z = make(x.rows, width) if active.is_everything else aligned_empty(1, active.slots)
        shaped = z if active.is_everything or active.is_per_row or isinstance(x, Sparse) else z.reshape(x.rows, -1)
        if isinstance(x, Dense):
            self.native.forward(x.values, active, shaped)
        else:
            self.native.forward(x.offsets, x.ids, x.values, active, shaped)
        return z

    def learn(self, x: Activations, active: Any, dz: Floats, want_dx: bool = True) -> tuple[bool, Floats | None]:
        """Steps weights along gradients laid out as `forward` gives its sums; returns whether all gradients were
        finite, and the gradient of the input: (rows, padded inputs) for dense, a value per element for sparse input."""
        self.before_step(x, active)
        if isinstance(x, Dense):
            dx = np.empty_like(x.values)
            shaped = dz if active.is_everything or active.is_per_row else dz.reshape(x.rows, -1)
            fine = self.native.learn(x.values, active, shaped, dx, self.optimizer)
            return fine, dx
        back = np.empty(len(x.values), np.float32) if want_dx else None
        fine = self.native.learn(x.offsets, x.ids, x.values, active, dz, back, self.optimizer)
        return fine, back

    def rebuild_tables(self) -> int:
        """Hashes again the neurons that moved since the last time; returns how many those were."""
        if self.lsh is None:
            return 0
        self._before_change(CODES)
        self._before_change(MOVED)
        return self.lsh.rebuild(self.codes)

    def codes(self, functions: Any, ids: Ids) -> Codes:
        """Bucket numbers of some neurons, (ids, tables)."""
        weights = self.arrays["weights"]
        if not self.sparse_input and weights.dtype == np.float32:
            codes: Codes = functions.dense(weights[:, : self.inputs], ids)
            return codes
        step = max(1, COPIED_BYTES // (4 * self.inputs))
        pieces = [ids[begin : begin + step] for begin in range(0, len(ids), step)]
        rows = (weights[:, piece].T if self.sparse_input else weights[piece, : self.inputs] for piece in pieces)
        return np.concatenate([functions.dense(widened(np.ascontiguousarray(some))) for some in rows])
