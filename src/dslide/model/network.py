"""The network in training: one step on a batch.

The step reads like the algorithm: forward through the hidden layers, the output layer's loss over its active neurons,
backward with every touched weight stepped on the way, and now and then a renewal of hash tables. With several ranks
each computes its own neurons; activations are gathered and their gradients summed (exchange.py), in parts of the batch,
so that one part crosses the network while another is computed. The result is that of one process, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.checkpoint.snapshot import Snapshot
from dslide.comm.votes import NO_VOTES, Vote, Votes
from dslide.config import Config
from dslide.data import SparseRows
from dslide.errors import Diverged
from dslide.model.activations import (
    Activations,
    Dense,
    Floats,
    Ids,
    Offsets,
    Sparse,
    aligned_empty,
    aligned_zeros,
    padded,
)
from dslide.model.active_sets import slot_lists, slots_of
from dslide.model.label_prior import LabelPrior, row_lengths
from dslide.model.layer import Layer
from dslide.model.lsh import hidden_sampling_sizes, sampling_sizes
from dslide.model.micro_batches import exchanged_parts
from dslide.model.predictor import Predictor
from dslide.model.state_layout import CODES, MOVED
from dslide.model.storage import checked
from dslide.model.targets import Labels
from dslide.training import phases, work
from dslide.training.profiler import Profile, timed

KEPT_BYTES = 64 << 20  # a batch's logits are kept from the first pass to the second if they take no more

Hits = tuple[Offsets, Ids]


@dataclass(frozen=True)
class StepResult:
    """What a training step says of itself."""

    loss: float  # mean over rows
    active: float  # mean number of active output neurons that a row saw
    own_active: float = 0.0  # those of this rank among them
    votes: Votes = NO_VOTES


class Network(Predictor):
    """A network that can be trained; what it is made of and how it predicts is said in `Predictor`."""

    _logits: Floats = np.empty(0, np.float32)
    profile: Profile | None = None  # is told where the time of steps goes

    def reconfigure(self, config: Config) -> None:
        """Takes over options that do not change the network's shape; they count from the next step on."""
        self.config, self.collectives.wire = config, config.wire

    def set_output_bias(self, frequencies: npt.NDArray[np.float64]) -> None:
        """Lets a network that has learned nothing yet predict every label as often as it occurs. With the
        sigmoid loss, where nearly every answer is no, steps of a usual size would take long to find that out."""
        odds = frequencies / (1 - frequencies) if self.config.loss == "sigmoid" else frequencies / frequencies.sum()
        own = np.log(odds)[self.shard.own]
        self.output.arrays["bias"][: len(own), 0] = own

    def set_label_prior(self, x: SparseRows, y: SparseRows, same: bool) -> None:
        """Counts the label prior from training data; `same`: they are the same things."""
        self.prior = LabelPrior.count(x, y, self.features, self.labels, self.config, self.shard, same)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Every array that makes up this rank's part of the network and of what training goes on from, by name; no
        copies."""
        layers = {f"{layer.name}.{name}": array for layer in self.layers for name, array in layer.state.items()}
        return layers | self._link_state()

    def load_state(self, arrays: Any) -> None:
        """Copies arrays given by name over the network's own; all of them must be there. Hash tables may be missing,
        and are then made from the weights."""
        super().load_state(arrays)
        for layer in self.layers:
            if layer.lsh is None:
                continue
            codes, moved = (f"{layer.name}.{name}" for name in (CODES, MOVED))
            if codes not in arrays:
                layer.lsh.forget()
                continue
            own = layer.lsh.tables.codes
            layer.lsh.load(
                checked(arrays, codes, own.dtype, own.shape), checked(arrays, moved, np.dtype(np.bool_), own.shape[1:])
            )

    def watch(self, snapshot: Snapshot | None) -> None:
        """From now on the snapshot, which is of this network's state, is told of every change; None: nobody is."""
        for layer in self.layers:
            layer.snapshot = snapshot

    def train_step(self, x: Sparse, labels: Labels, step: int, rate: float, vote: Vote = Vote.NONE) -> StepResult:
        """One synchronous step on a batch. Raises Diverged if a gradient is not finite. The result has the
        votes of all ranks."""
        self.version += 1
        self.comm.step = step + 1
        for layer in self.layers:
            if layer.lsh is not None and not layer.lsh.built:
                self._renew(layer)
            layer.optimizer.rate = rate
        labels = Labels(*self.shard.owned_lists(labels.offsets, labels.ids, labels.targets))
        lengths = row_lengths(x) if self.prior is not None else None
        x = self._drop_inputs(x, step)
        inputs: list[Activations] = [x]
        active_sets: list[Any] = []
        searches: list[Callable[[], Hits]] = []
        for i in range(len(self.layers) - 1):
            with self._phase(phases.ACTIVE):
                active = self._hidden_active(i, inputs[-1], step)
            with self._phase(phases.HIDDEN_FORWARD, work.forward, self.layers[i], inputs[-1], active):
                inputs.append(self._forward(i, inputs[-1], active, step, searches))
            active_sets.append(active)

        with self._phase(phases.ACTIVE):
            active = self._output_active(inputs[-1], labels, step, searches)
        if self.prior is not None and lengths is not None:
            with self._phase(phases.LABEL_PRIOR):
                self.prior.add(x, lengths, active, labels, 1 - self.config.dropout_input)
        fine, loss, gradient = self._learn_output(inputs[-1], active, labels)
        summary = self.collectives.summary(loss, active.mean, fine, vote)
        if self.output.lsh:
            self.output.lsh.touch(active.ids)
        with self._phase(phases.PACKING):
            da = gradient()
        seen = summary()
        self._check(seen.finite, seen.loss, self.output, step, rate)

        for i in range(len(self.layers) - 2, -1, -1):
            layer = self.layers[i]
            with self._phase(phases.HIDDEN_BACKWARD, work.learn, layer, inputs[i], active_sets[i], i > 0):
                dz = self._deactivate(i, inputs[i + 1], da, active_sets[i], step)
                fine, dx = layer.learn(inputs[i], active_sets[i], dz, want_dx=i > 0)
            self._check(fine, seen.loss, layer, step, rate)
            if layer.lsh:
                layer.lsh.touch(active_sets[i].ids)
            if i > 0:
                assert dx is not None
                with self._phase(phases.PACKING):
                    da = self._sum(i, inputs[i], dx)()
        return StepResult(seen.loss / x.rows, seen.active, active.mean, seen.votes)

    def rebuild_tables(self) -> int:
        """Hashes again every neuron that moved since the last renewal; returns how many."""
        return sum(self._renew(layer) for layer in self.layers)

    def _renew(self, layer: Layer) -> int:
        with self._phase(phases.REBUILDING):
            return layer.rebuild_tables()

    def _phase(
        self, name: str, formula: Callable[..., work.Work | None] | None = None, *arguments: Any
    ) -> AbstractContextManager[None]:
        return timed(self.profile, name, formula, *arguments)

    # ---- hidden layers --------------------------------------------------------------------------------------------

    def _seed(self, step: int, purpose: int) -> int:
        return int(_core.mix(self.config.seed ^ (purpose << 48), step))

    def _parts(self, rows: int) -> list[tuple[int, int]]:
        return exchanged_parts(self.config, rows, self.shard.size)

    def _drop_inputs(self, x: Sparse, step: int) -> Sparse:
        if self.config.dropout_input == 0:
            return x
        values = x.values.copy()
        _core.dropout_sparse(values, x.offsets, x.ids, self.config.dropout_input, self._seed(step, 1))
        return Sparse(x.offsets, x.ids, values).without_zeros()  # what is left out has no gradient, and is not stepped

    def _hidden_active(self, i: int, x: Activations, step: int) -> Any:
        """Active neurons of hidden layer i: hash hits, an eighth of random ones among them."""
        layer = self.layers[i]
        if layer.lsh is None:
            return layer.everything(x.rows)
        each, draws = hidden_sampling_sizes(self.config, layer.total, self.shares[i], x.rows)
        hits = self._search(layer, x, each, step, 0)()
        nothing = Labels(np.zeros(x.rows + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
        return self._sampled(layer, nothing, hits, draws, self._seed(step, 16 + i), False)

    def _sampled(self, layer: Layer, labels: Labels, hits: Hits | None, draws: int, seed: int, correct: bool) -> Any:
        hit_offsets, hit_ids = hits if hits is not None else (None, None)
        return _core.ActiveSet.sampled(
            self.config.active_sets == "row", layer.neurons, labels.offsets, labels.ids, hit_offsets, hit_ids, draws,
            seed, correct, layer.total, self.shard.rank, self.shard.size,
        )  # fmt: skip

    def _search(self, layer: Layer, x: Activations, want: int, step: int, first_row: int) -> Callable[[], Hits]:
        """Looks for hash hits in own tables; the function gives those of them that are among the best of all ranks."""
        assert layer.lsh is not None
        with self._phase(phases.HASH_LOOKUP):
            offsets, ids, ranking = layer.lsh.hits(x, want, step, first_row)
        if ranking is None:
            return lambda: (offsets, ids)
        return self.collectives.best_hits(offsets, ids, ranking, want)

    def _forward(
        self, i: int, x: Activations, active: Any, step: int, searches: list[Callable[[], Hits]]
    ) -> Activations:
        """Activations of layer i on all ranks. If the output layer follows, its hash hits are looked for in each part
        of the batch as soon as that is complete."""
        layer, last = self.layers[i], i == len(self.layers) - 2
        if not active.is_everything:
            a: Activations = self._activate_sampled(i, layer.forward(x, active), active, step)
            with self._phase(phases.PACKING):
                a = self.collectives.gather_sparse(f"activations of {layer.name}", a)  # type: ignore[arg-type]
            return self._searched(a, step, searches, 0) if last else a
        parts, flights = self._parts(x.rows), []
        for begin, end in parts:
            z = layer.forward(x.part(begin, end), active if len(parts) == 1 else layer.everything(end - begin))
            self._activate(i, z, step, begin)
            if self.shard.size == 1:
                return self._searched(Dense(z), step, searches, 0) if last else Dense(z)
            with self._phase(phases.PACKING):
                flights.append(self.collectives.gather_columns(f"activations of {layer.name}", z, layer.total))
        whole = Dense(aligned_zeros(x.rows, padded(layer.total)))
        for (begin, end), arrive in zip(parts, flights, strict=True):
            part = whole.part(begin, end)
            with self._phase(phases.PACKING):
                arrive(part.values)
            if last:
                self._searched(part, step, searches, begin)
        return whole

    def _searched(self, x: Activations, step: int, searches: list[Callable[[], Hits]], first_row: int) -> Activations:
        """Begins to look for the output layer's hash hits of some rows."""
        hits, _ = sampling_sizes(self.config, self.labels)
        if self.output.lsh is not None and hits:
            searches.append(self._search(self.output, x, hits, step, first_row))
        return x

    def _activate(self, i: int, z: Floats, step: int, first_row: int) -> None:
        """Sums become activations, in place."""
        if self.config.activation == "relu":
            np.maximum(z, 0, out=z)
        self._drop_hidden(i, z, step, first_row)

    def _drop_hidden(self, i: int, z: Floats, step: int, first_row: int = 0) -> None:
        if drop := self.config.dropout_hidden:
            seed = self._seed(step, 32 + i)
            _core.dropout_dense(z, self.layers[i].neurons, drop, seed, first_row, self.shard.rank, self.shard.size)

    def _activate_sampled(self, i: int, z: Floats, active: Any, step: int) -> Sparse:
        """Sums of a sampled layer become activations, by their numbers in the whole layer."""
        if self.config.activation == "relu":
            np.maximum(z, 0, out=z)
        offsets, ids = slot_lists(active)
        ids, values = self.shard.whole(ids), z.reshape(-1)
        if drop := self.config.dropout_hidden:
            _core.dropout_sparse(values, offsets, ids, drop, self._seed(step, 32 + i))
        return Sparse(offsets, ids, values).without_zeros()

    def _deactivate(self, i: int, a: Activations, da: Floats, active: Any, step: int) -> Floats:
        """Gradients of own activations become gradients of sums, laid out as the layer's `forward` has them."""
        if isinstance(a, Dense):
            self._drop_hidden(i, da, step)
            if self.config.activation == "relu":
                own = a.values[:, self.shard.own] if self.shard.size > 1 else a.values
                da[:, : own.shape[1]] *= own[:, : da.shape[1]] > 0
            return da
        offsets, ids, _ = self.shard.owned_lists(a.offsets, a.ids, a.values)
        if drop := self.config.dropout_hidden:
            _core.dropout_sparse(da, offsets, self.shard.whole(ids), drop, self._seed(step, 32 + i))
        dz = aligned_zeros(1, active.slots)
        dz[0, slots_of(offsets, ids, active)] = da  # activations that are 0 have no gradient, or none that matters
        return dz

    def _sum(self, i: int, a: Activations, da: Floats) -> Callable[[], Floats]:
        """Each rank's share of the gradients of layer i - 1's activations becomes their sum for own neurons."""
        name = f"gradients of {self.layers[i - 1].name}"
        with self._phase(phases.PACKING):
            if isinstance(a, Dense):
                return self.collectives.sum_columns(name, da, self.layers[i].inputs)
            total = self.collectives.sum_sparse(name, a, da)
        return lambda: total

    # ---- the output layer -----------------------------------------------------------------------------------------

    def _output_active(self, x: Activations, labels: Labels, step: int, searches: list[Callable[[], Hits]]) -> Any:
        if self.output_mode == "full":
            return self.output.everything(x.rows)
        _, draws = sampling_sizes(self.config, self.labels)
        hits = _joined([finish() for finish in searches]) if searches else None
        return self._sampled(self.output, labels, hits, draws, self._seed(step, 2), self.config.correction)

    def _learn_output(self, x: Activations, active: Any, labels: Labels) -> tuple[bool, float, Callable[[], Floats]]:
        """Loss of own labels (summed over rows) and step of the output layer; the function gives the gradient of own
        activations."""
        layer, scale, index = self.output, 1 / x.rows, len(self.layers) - 1
        softmax = self.config.loss == "softmax"
        target = (labels.offsets, labels.ids, labels.targets)
        if isinstance(x, Dense) and not active.is_per_row:
            with self._phase(phases.ACTIVE):
                found = _core.FoundLabels(active, *target)
            return (self._learn_softmax if softmax else self._learn_sigmoid)(x, active, found, scale)
        reference, total = np.full(x.rows, -np.inf, np.float32), np.zeros(x.rows, np.float32)
        with self._phase(phases.FIRST_PASS, work.forward, layer, x, active):
            z = layer.forward(x, active)
            slots = np.ascontiguousarray(z[:, : layer.neurons]).reshape(-1) if active.is_everything else z.reshape(-1)
            if softmax:
                _core.softmax_stats(active, slots, reference, total)
        with self._phase(phases.SECOND_PASS, work.learn, layer, x, active):
            if softmax:
                log_norm = self.collectives.normaliser(reference, total)()
                loss = _core.softmax_gradient(active, slots, *target, log_norm, scale)
            else:
                loss = _core.sigmoid_gradient(active, slots, *target, scale)
            dz = slots.reshape((x.rows, -1) if active.is_everything else (1, -1))
            fine, back = layer.learn(x, active, dz)
        assert back is not None
        return fine, loss, self._sum(index, x, back)

    def _learn_softmax(
        self, x: Dense, active: Any, labels: Any, scale: float
    ) -> tuple[bool, float, Callable[[], Floats]]:
        """As `_learn_output`, ordered so that normalisers cross the network while the next part's are computed, and
        gradients while the weights take their step."""
        layer, native, parts = self.output, self.output.native, self._parts(x.rows)
        kept = self._room_for_logits(native.kept_size(active))
        reference, total, dx = np.empty(x.rows, np.float32), np.empty(x.rows, np.float32), np.empty_like(x.values)
        norms, sums, loss = [], [], 0.0
        for begin, end in parts:
            with self._phase(phases.FIRST_PASS, work.first_pass, layer, x.values[begin:end], active, kept is not None):
                native.softmax_first(x.values, active, labels, reference, total, dx, kept, begin, end)
            norms.append(self.collectives.normaliser(reference[begin:end], total[begin:end]))
        log_norm = np.empty(x.rows, np.float32)
        for (begin, end), arrive in zip(parts, norms, strict=True):
            log_norm[begin:end] = arrive()
            with self._phase(phases.SECOND_PASS, work.softmax_backward, layer, x.values[begin:end]):
                loss += native.softmax_backward(active, labels, reference, log_norm, scale, dx, begin, end)
            sums.append(self._sum(len(self.layers) - 1, x.part(begin, end), dx[begin:end]))
        with self._phase(phases.SECOND_PASS, work.step, layer, x.values, active, kept is not None):
            layer.before_step(x, active)
            fine = native.softmax_step(x.values, active, labels, log_norm, scale, layer.optimizer, kept)
        return fine, loss, lambda: _concatenated([finish() for finish in sums])

    def _learn_sigmoid(
        self, x: Dense, active: Any, labels: Any, scale: float
    ) -> tuple[bool, float, Callable[[], Floats]]:
        """As `_learn_output`; with other ranks, so that gradients cross the network while the next part's, and at the
        end the step of the weights, are computed."""
        layer, native, index = self.output, self.output.native, len(self.layers) - 1
        kept = self._room_for_logits(native.kept_size(active)) if self.shard.size > 1 else None
        dx, sums, loss = np.empty_like(x.values), [], 0.0
        if kept is None:
            with self._phase(phases.SECOND_PASS, work.sigmoid_learn, layer, x.values, active):
                layer.before_step(x, active)
                fine, loss = native.sigmoid_learn(x.values, active, labels, scale, dx, layer.optimizer)
            return fine, loss, self._sum(index, x, dx)
        for begin, end in self._parts(x.rows):
            with self._phase(phases.SECOND_PASS, work.sigmoid_backward, layer, x.values[begin:end], active):
                loss += native.sigmoid_backward(x.values, active, labels, scale, dx, kept, begin, end)
            sums.append(self._sum(index, x.part(begin, end), dx[begin:end]))
        with self._phase(phases.SECOND_PASS, work.step, layer, x.values, active, True):
            layer.before_step(x, active)
            fine = native.sigmoid_step(x.values, active, kept, layer.optimizer)
        return fine, loss, lambda: _concatenated([finish() for finish in sums])

    def _room_for_logits(self, size: int) -> Floats | None:
        """Room for the batch's logits, kept between steps; None if they would take too much."""
        if 4 * size > KEPT_BYTES:
            return None
        if len(self._logits) < size:
            self._logits = aligned_empty(1, size)[0]
        return self._logits

    def _check(self, fine: bool, loss: float, layer: Layer, step: int, rate: float) -> None:
        if not (fine and math.isfinite(loss)):
            raise Diverged(
                f"training diverged: a gradient in {layer.name} ({layer.inputs} x {layer.total}) is not finite at "
                f"step {step + 1} with learning rate {rate:g}; try a smaller learning_rate"
            )


def _concatenated(parts: list[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _joined(parts: list[Hits]) -> Hits:
    """The hits of parts of a batch, in order, as those of the whole."""
    if len(parts) == 1:
        return parts[0]
    counts = np.concatenate([np.diff(offsets) for offsets, _ in parts])
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), np.concatenate([ids for _, ids in parts])
