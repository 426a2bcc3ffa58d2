"""The stage of a training step in which the output layer learns: look up of the neurons that hidden vectors are likely
to excite, the active set of these, the labels and random negatives, and loss and step of the output layer over it.

A network's own step (train_step.py) and `dslide.torch`, where another framework computes the hidden vectors, share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from dslide._core import ActiveSet
from dslide.comm.future import Future
from dslide.errors import Diverged
from dslide.model import active_sets
from dslide.model.activations import Activations, Arriving, Dense
from dslide.model.cells import RecentRows
from dslide.model.collectives import Collectives
from dslide.model.defaults import ResolvedConfig
from dslide.model.layer import Layer
from dslide.model.micro_batches import micro_batches
from dslide.model.output_losses import OutputLoss, OutputStep
from dslide.model.random_streams import Stream, stream_seed
from dslide.model.retriever import Retriever
from dslide.model.sharding import Shard
from dslide.util.arrays import Floats
from dslide.util.csr import Csr, Lists


class HasOutput(Protocol):
    """What has an output layer, and what finds its neurons."""

    config: ResolvedConfig
    shard: Shard
    loss: OutputLoss
    recent: RecentRows | None  # hidden vectors that cells are made of
    inclusion: Floats | None  # of each own neuron: its probability of being a random negative; None: all alike

    @property
    def collectives(self) -> Collectives:
        """The exchanges between ranks."""

    @property
    def output(self) -> Layer:
        """The output layer."""

    @property
    def retriever(self) -> Retriever | None:
        """What neurons are looked up in."""


class OutputStage:
    """The stage of one network."""

    def __init__(self, network: HasOutput) -> None:
        self.network = network

    def learn_output(
        self, arriving: Arriving, own: Csr, step: int, more: Sequence[Future[Lists]] = (),
        adjust: Callable[[ActiveSet], None] | None = None,
    ) -> tuple[Activations, ActiveSet, OutputStep]:  # fmt: skip
        """One step of the output layer on hidden vectors, for the targets of own neurons; also the vectors, once they
        have arrived, and the active set. `more`: other neurons for the active set; `adjust` may add to its logits."""
        # Hidden vectors travel while the active set is made, unless neurons are looked up.
        hits = self.look_up(arriving, step)
        active = self.output_active(own, [*more, *hits], step)
        if adjust is not None:
            adjust(active)
        x = arriving.wait()
        self.keep_recent(x)
        return x, active, self.network.loss.learn(x, active, own, self.parts(x.rows))

    def look_up(self, arriving: Arriving, step: int) -> list[Future[Lists]]:
        """Looks up output neurons, for each micro-batch as soon as its activations have arrived. Of the hits of all
        ranks the best are kept. Empty if nothing is looked up."""
        network, want = self.network, self.network.config.hits_per_row
        retriever = network.retriever
        if retriever is None or not retriever.built or want == 0:
            return []
        found = [
            network.collectives.best_hits(retriever.look_up(x, want, step, first_row), want)
            for first_row, x in arriving.parts()
        ]
        return [Future(lambda: Lists.concatenate([hits.wait() for hits in found]))]

    def keep_recent(self, x: Activations) -> None:
        """Keeps the hidden vectors that cells are made of."""
        if self.network.recent is not None and isinstance(x, Dense):
            self.network.recent.add(x.values)

    def output_active(self, own: Csr, hits: list[Future[Lists]], step: int) -> ActiveSet:
        """The output layer's active set: all neurons, or labels, what was looked up, and random negatives."""
        network, config = self.network, self.network.config
        if config.output == "full":
            return network.output.everything(own.rows)
        found = Lists.side_by_side([each.wait() for each in hits]) if hits else None
        seed = stream_seed(config.seed, Stream.OUTPUT_NEGATIVES, step)
        return self._sampled(
            network.output, own, found, config.random_negatives, seed, config.correction, network.inclusion
        )

    def parts(self, rows: int) -> list[tuple[int, int]]:
        """The micro-batches of a batch, whose exchange overlaps with computing the others."""
        return micro_batches(rows, self.network.config.micro_batches if self.network.shard.size > 1 else 1)

    def check(self, finite: bool, loss: float, layer: Layer, step: int, rate: float) -> None:
        """Raises Diverged if a gradient or the loss is not finite."""
        if not (finite and math.isfinite(loss)):
            raise Diverged(
                f"training diverged: a gradient in {layer.name} ({layer.inputs} x {layer.total}) is not finite at "
                f"step {step + 1} with learning rate {rate:g}; try a smaller learning_rate"
            )

    def _sampled(
        self, layer: Layer, labels: Lists, hits: Lists | None, negatives: int, seed: int, correct: bool,
        probability: Floats | None = None,
    ) -> ActiveSet:  # fmt: skip
        return active_sets.sampled(
            labels, hits, negatives, seed, per_row=self.network.config.active_sets == "row", neurons=layer.neurons,
            total=layer.total, shard=self.network.shard, correct=correct, probability=probability,
        )  # fmt: skip
