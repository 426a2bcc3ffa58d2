"""One training step of Distributed SLIDE, top to bottom:

forward through the hidden layers, each ending in an all-gather of its activations; look up of the output neurons that
the rows are likely to excite; the active set of these, the labels and random negatives; loss and step of the output
layer over the active set; reduce-scatter of the gradients; backward through the hidden layers, stepping their weights.

Each rank computes its own neurons. The result is that of one process, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dslide import _core
from dslide._core import ActiveSet
from dslide.comm.future import Future
from dslide.comm.votes import NO_VOTES, Vote, Votes
from dslide.model import active_sets
from dslide.model.activations import Activations, Arriving, Dense, Input, Mixed, sparse_rows
from dslide.model.collectives import NOTHING
from dslide.model.label_prior import SCALE_STEP, Lengths, ScaleGradient, row_lengths
from dslide.model.lsh import hidden_sampling
from dslide.model.output_stage import OutputStage
from dslide.model.random_streams import Stream, stream_seed
from dslide.util.arrays import Floats, aligned_zeros, padded
from dslide.util.csr import Csr, Lists

if TYPE_CHECKING:
    from dslide.model.network import Network


@dataclass(frozen=True)
class StepResult:
    """What a training step reports."""

    loss: float  # mean over rows
    active: float  # mean number of active output neurons that a row saw
    own_active: float = 0.0  # those of this rank among them
    votes: Votes = NO_VOTES


class TrainStep(OutputStage):
    """The step of one network. Its methods are the stages of the step."""

    network: Network

    def __call__(self, x: Input, targets: Csr, step: int, rate: float, vote: Vote = Vote.NONE) -> StepResult:
        """One synchronous step on a batch. Raises Diverged if a gradient is not finite. The result has the votes of all
        ranks."""
        network, hidden = self.network, range(len(self.network.layers) - 1)
        network.begin_step(step, rate)
        own = network.shard.own_part(targets)
        lengths = None if network.prior is None else row_lengths(sparse_rows(x))  # before dropout
        x = self.drop_inputs(x, step)
        confusable = [] if lengths is None else self.look_up_prior(sparse_rows(x), lengths, own)  # travels meanwhile

        # Forward: every rank computes its own neurons; the all-gather gives all ranks all of them.
        outputs: list[Activations] = []
        active_hidden = []
        arriving = Arriving(x.dense if isinstance(x, Mixed) else x)  # is used without hidden layers only
        for i in hidden:
            if i > 0:
                outputs.append(arriving.wait())
            given = outputs[-1] if outputs else x
            active_hidden.append(self.hidden_active(i, given, step))
            arriving = self.forward(i, given, active_hidden[i], step)

        # The output layer: look up neurons, choose the active set, compute its loss and step.
        adjust = None if lengths is None else partial(self.add_prior, sparse_rows(x), lengths, own)
        last, active, output = self.learn_output(arriving, own, step, confusable, adjust)
        outputs.append(last)
        scales = NOTHING if lengths is None else self.learn_prior(sparse_rows(x), lengths, active, rate)
        summary = network.collectives.summary(output.loss, active.mean, output.finite, vote, scales)
        gradient = output.gradient.wait()  # reduce-scattered: of own activations, summed over ranks
        seen = summary.wait()
        self.check(seen.finite, seen.loss, network.output, step, rate)
        self.step_prior_scales(seen.sums, rate)

        # Backward: every rank steps its own neurons; the reduce-scatter gives it the gradient of its own activations.
        # The directions of a discriminant stay as they are.
        for i in reversed(hidden) if network.config.start == "random" else ():
            layer = network.layers[i]
            given = outputs[i - 1] if i > 0 else x
            finite, dx = self.backward(i, given, outputs[i], active_hidden[i], gradient, step)
            self.check(finite, seen.loss, layer, step, rate)
            if dx is not None:
                name = f"gradients before {layer.name}"
                gradient = network.collectives.reduce_scatter(name, outputs[i - 1], dx, layer.inputs).wait()
        return StepResult(seen.loss / x.rows, seen.active, active.mean, seen.votes)

    # ---- hidden layers --------------------------------------------------------------------------------------------

    def drop_inputs(self, x: Input, step: int) -> Input:
        """Input dropout. What is left out has no gradient; of sparse features it is not stepped either."""
        config = self.network.config
        if config.dropout_input == 0:
            return x
        if isinstance(x, Mixed):
            sparse, dense = self.drop_inputs(x.sparse, step), self._drop_dense(x.dense, step, Stream.DENSE_DROPOUT)
            assert isinstance(sparse, Csr)
            return Mixed(sparse, dense, x.width)
        if isinstance(x, Dense):
            return self._drop_dense(x, step, Stream.INPUT_DROPOUT)
        values = x.values.copy()
        seed = stream_seed(config.seed, Stream.INPUT_DROPOUT, step)
        _core.dropout_sparse(values, x.indptr, x.indices, config.dropout_input, seed)
        return Csr(x.indptr, x.indices, values).where(values != 0)

    def _drop_dense(self, x: Dense, step: int, stream: Stream) -> Dense:
        config, values = self.network.config, x.values.copy()
        seed = stream_seed(config.seed, stream, step)
        _core.dropout_dense(values, values.shape[1], config.dropout_input, seed)
        return Dense(values)

    def hidden_active(self, i: int, x: Input, step: int) -> ActiveSet:
        """Active neurons of hidden layer i: all, or hash hits and random neurons."""
        network, layer = self.network, self.network.layers[i]
        if layer.lsh is None:
            return layer.everything(x.rows)
        want, negatives = hidden_sampling(network.config, layer.total, layer.spec.share, x.rows)
        hits = network.collectives.best_hits(layer.lsh.look_up(x, want, step), want).wait()
        no_labels = Lists(np.zeros(x.rows + 1, np.int64), np.zeros(0, np.int32))
        seed = stream_seed(network.config.seed, Stream.HIDDEN_NEGATIVES, step, i)
        return self._sampled(layer, no_labels, hits, negatives, seed, correct=False)

    def forward(self, i: int, x: Input, active: ActiveSet, step: int) -> Arriving:
        """Computes own activations of layer i and begins to gather those of all ranks, micro-batch by micro-batch."""
        network, layer = self.network, self.network.layers[i]
        name = f"activations of {layer.name}"
        if not active.is_everything:
            own = self._activate_sampled(i, layer.forward(x, active), active, step)
            return Arriving(network.collectives.all_gather_sparse(name, own))
        parts = self.parts(x.rows)
        whole = Dense(aligned_zeros(x.rows, padded(layer.total))) if network.shard.size > 1 else None
        gathers = []
        for begin, end in parts:
            z = layer.forward(x.part(begin, end), active if len(parts) == 1 else layer.everything(end - begin))
            self._activate(i, z, step, begin)
            if whole is None:
                return Arriving(Dense(z))
            into = whole.values[begin:end]
            gathers.append((begin, end, network.collectives.all_gather(name, z, layer.total, into)))
        assert whole is not None
        return Arriving(whole, gathers)

    def backward(
        self, i: int, x: Input, a: Activations, active: ActiveSet, gradient: Floats, step: int
    ) -> tuple[bool, Floats | None]:
        """Steps layer i along the gradients of its own activations `a`; returns whether all gradients were finite, and
        this rank's share of the gradient of its input, if another layer is before it."""
        dz = self._deactivate(i, a, gradient, active, step)
        return self.network.layers[i].learn(x, active, dz, want_dx=i > 0)

    def _activate(self, i: int, z: Floats, step: int, first_row: int) -> None:
        """Sums become activations, in place."""
        if self.network.config.activation == "relu":
            np.maximum(z, 0, out=z)
        self._drop_hidden(i, z, step, first_row)

    def _drop_hidden(self, i: int, z: Floats, step: int, first_row: int = 0) -> None:
        network = self.network
        if drop := network.config.dropout_hidden:
            shard, neurons = network.shard, network.layers[i].neurons
            _core.dropout_dense(z, neurons, drop, self._dropout_seed(i, step), first_row, shard.stripe)

    def _activate_sampled(self, i: int, z: Floats, active: ActiveSet, step: int) -> Csr:
        """Sums of a sampled layer become activations, by their numbers in the whole layer."""
        config = self.network.config
        if config.activation == "relu":
            np.maximum(z, 0, out=z)
        slots = active_sets.slot_lists(active)
        a = Csr(slots.indptr, self.network.shard.to_global(slots.indices), z.reshape(-1))
        if config.dropout_hidden:
            _core.dropout_sparse(a.values, a.indptr, a.indices, config.dropout_hidden, self._dropout_seed(i, step))
        return a.where(a.values != 0)

    def _deactivate(self, i: int, a: Activations, da: Floats, active: ActiveSet, step: int) -> Floats:
        """Gradients of own activations become gradients of sums, laid out as the layer's `forward` has them."""
        network, config = self.network, self.network.config
        if isinstance(a, Dense):
            self._drop_hidden(i, da, step)
            if config.activation == "relu":
                own = network.shard.part(a.values, axis=1) if network.shard.size > 1 else a.values
                da[:, : own.shape[1]] *= own[:, : da.shape[1]] > 0
            return da
        owned = network.shard.own_part(a)
        if config.dropout_hidden:
            numbers = network.shard.to_global(owned.indices)
            _core.dropout_sparse(da, owned.indptr, numbers, config.dropout_hidden, self._dropout_seed(i, step))
        dz = aligned_zeros(1, active.slots)
        dz[0, active_sets.slots_of(owned, active)] = da  # activations that are 0 have no gradient, or none that matters
        return dz

    def _dropout_seed(self, i: int, step: int) -> int:
        return stream_seed(self.network.config.seed, Stream.HIDDEN_DROPOUT, step, i)

    # ---- the label prior ------------------------------------------------------------------------------------------

    def look_up_prior(self, x: Csr, lengths: Lengths, own: Csr) -> list[Future[Lists]]:
        """The labels that the label prior takes each row for, but which it has not; as `look_up`."""
        network, want = self.network, self.network.config.prior_hits
        if network.prior is None or want == 0 or network.config.output == "full":
            return []
        bias = np.ascontiguousarray(network.output.arrays["bias"][:, 0])
        hits = network.prior.look_up(x, lengths, own, bias, want, network.shard, x.by_column)
        return [network.collectives.best_hits(hits, want)]

    def add_prior(self, x: Csr, lengths: Lengths, own: Csr, active: ActiveSet) -> None:
        """Adds the label prior to the logits of the active set."""
        if self.network.prior is not None:
            self.network.prior.add(x, lengths, active, own, 1 - self.network.config.dropout_input)

    def learn_prior(self, x: Csr, lengths: Lengths, active: ActiveSet, rate: float) -> ScaleGradient:
        """Steps the label prior's own weights; returns this rank's part of the gradient of its scales."""
        prior, config = self.network.prior, self.network.config
        if prior is None or not prior.is_trained:
            return NOTHING
        return prior.learn(x, lengths, active, config.prior_learning_rate * self._schedule(rate))

    def step_prior_scales(self, gradient: ScaleGradient, rate: float) -> None:
        """Steps the label prior's scales; `gradient` is summed over ranks, and empty if there is none."""
        if self.network.prior is not None and len(gradient):
            first = SCALE_STEP * self.network.config.prior_scale
            self.network.prior.step_scales(gradient, first * self._schedule(rate))

    def _schedule(self, rate: float) -> float:
        """The learning rate of this step as a share of the full one."""
        full = self.network.config.learning_rate
        return rate / full if full > 0 else 0.0
