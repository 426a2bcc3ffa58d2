"""An output layer by itself, over hidden vectors that something else computes, such as an encoder of another framework.

Its neurons are split over ranks as those of every layer, but each rank brings rows of its own: their hidden vectors and
labels are gathered, every rank computes its neurons for all of them, and gradients go back to the ranks that the rows
are of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dslide import _core
from dslide.comm import Communicator
from dslide.comm.topology import local_ranks
from dslide.errors import ConfigError, DataError, known_to_all
from dslide.model.activations import Arriving, Dense
from dslide.model.cell_arrays import cell_bytes
from dslide.model.defaults import ResolvedConfig
from dslide.model.hash_parameters import hash_parameters, training_family
from dslide.model.layer import Layer, table_bytes
from dslide.model.layout import LayerSpec
from dslide.model.output_network import OutputNetwork
from dslide.model.output_stage import OutputStage
from dslide.model.prediction import LOGIT_BYTES
from dslide.model.random_streams import layer_seed
from dslide.model.row_collectives import RowCollectives, Rows
from dslide.model.sharding import Shard
from dslide.model.state_layout import MOMENTS
from dslide.model.storage import STORAGE
from dslide.util.arrays import Floats, Ids, padded
from dslide.util.memory import check_memory, rss_bytes

BLOCK_ROWS = 1024  # rows that are predicted together

Make = Callable[[], Rows]  # the rows that a rank brings; UserError if they can't be used


class SharedOutput(OutputNetwork):
    """An output layer of `labels` neurons over vectors of `inputs` numbers. Its methods are called on all ranks alike,
    each with the function that makes its own rows, and give every rank what belongs to these."""

    collectives: RowCollectives

    def __init__(self, config: ResolvedConfig, inputs: int, labels: int, comm: Communicator) -> None:
        if labels < comm.size:
            raise known_to_all(ConfigError(f"{labels} labels can't be split over {comm.size} ranks; use fewer ranks"))
        hashed = config.output == "lsh"
        hashing = hash_parameters(config, labels, inputs, training_family(config.family)) if hashed else None
        spec = LayerSpec(0, inputs, labels, False, 1.0, True, hashing)
        needed = rss_bytes() + memory_bytes(config, spec, comm.size)
        advice = "weights = bf16 needs less, and so do ranks on more machines"
        check_memory(needed, f"an output layer of {inputs:,} x {labels:,}", advice, local_ranks(comm).ranks)
        shard = Shard.of(comm)
        scale = config.init_scale / float(np.sqrt(inputs))
        layer = Layer(spec, config, layer_seed(config.seed, 0), scale=scale, shard=shard)
        super().__init__(config, labels, RowCollectives(comm, config.wire), [layer])
        self.stage = OutputStage(self)

    # ---- training ---------------------------------------------------------------------------------------------------

    def learn(self, make: Make, step: int, rate: float) -> tuple[float, Floats]:
        """One step of the layer on the rows of all ranks: their mean loss, and its gradient for the vectors of own
        rows. Raises Diverged if a gradient is not finite."""
        facts = {"the learning rate": rate, "the number of steps done": step}
        x, targets = self._gather("rows to learn from", make, facts)
        self.begin_step(step, rate)
        own = self.shard.own_part(targets)
        _, active, result = self.stage.learn_output(Arriving(Dense(x)), own, step)
        summary = self.collectives.summary(result.loss, active.mean, result.finite)
        gradient = result.gradient.wait()
        seen = summary.wait()
        self.stage.check(seen.finite, seen.loss, self.output, step, rate)
        return seen.loss / len(x), gradient

    def exact(self, make: Make, with_gradient: bool) -> tuple[float, Floats | None]:
        """The mean loss of the rows of all ranks over all labels, without a step, and its gradient for own rows."""
        x, targets = self._gather("rows of known labels", make, {"whether gradients are wanted": with_gradient})
        dx = np.empty_like(x) if with_gradient else None
        loss = 0.0
        for begin, end in self._blocks(len(x), 0 if self.loss.needs_labels else self.output.neurons):
            block, everything = Dense(x[begin:end]), self.output.everything(end - begin)
            own = self.shard.own_part(targets.part(begin, end))
            if dx is None:
                loss += self.loss.exact(block, everything, own)
            else:
                some, dx[begin:end] = self.loss.gradient(block, everything, own, 1 / len(x))
                loss += some
        loss = self.collectives.summary(loss, 0.0, True).wait().loss / len(x)
        if dx is None:
            return loss, None
        return loss, self.collectives.reduce_scatter("gradients of rows", Dense(x), dx, self.output.inputs).wait()

    # ---- prediction -------------------------------------------------------------------------------------------------

    def topk(self, make: Make, k: int, approximate: bool) -> tuple[Ids, Floats]:
        """The k best labels of own rows and their logits, (rows, k), best first; -1 where there are fewer. Labels that
        rows come with are left out. `approximate`: only labels that are looked up for the row are scored."""
        x, excluded = self._gather("rows to predict", make, {"k": k, "approximate": approximate}, exact=True)
        index = self.prediction_index() if approximate else None
        ids, scores = np.empty((len(x), k), np.int32), np.empty((len(x), k), np.float32)
        for begin, end in self._blocks(len(x)):
            h, own = x[begin:end], (np.empty((end - begin, k), np.int32), np.empty((end - begin, k), np.float32))
            left_out = self.shard.own_part(excluded.part(begin, end))
            if index is None:
                self.output.native.topk(h, *own, left_out.indptr, left_out.indices)
            else:
                found = index.candidates(Dense(h))
                lists = _core.join_candidates(
                    self.output.neurons, found.lists.indptr, found.lists.indices, found.list_of, None, None,
                    left_out.indptr, left_out.indices,
                )  # fmt: skip
                self.output.native.topk_of_lists(h, *lists, *own)
            ids[begin:end], scores[begin:end] = self.collectives.best_labels(*own)
        return ids[self.collectives.own_rows], scores[self.collectives.own_rows]

    def log_probabilities(self, make: Make) -> Floats:
        """The logarithms of the probabilities of own rows' labels over all labels: a value per element."""
        x, labels = self._gather("rows of some labels", make, {}, exact=True)
        found = [
            self.loss.log_probabilities(
                Dense(x[begin:end]), self.output.everything(end - begin), self.shard.own_part(labels.part(begin, end))
            )
            for begin, end in self._blocks(len(x))
        ]
        return self.collectives.own_values("log-probabilities", np.concatenate(found), labels)

    def _gather(self, name: str, make: Make, facts: Mapping[str, Any], exact: bool = False) -> Rows:
        rows = self.collectives.gather_rows(name, self.output.inputs, make, facts, exact)
        if len(rows[0]) == 0:
            wanted = "row with a label" if self.loss.needs_labels else "row"
            raise known_to_all(DataError(f"the batch is empty, expected at least one {wanted}"))
        return rows

    @staticmethod
    def _blocks(rows: int, wide: int = 0) -> Iterator[tuple[int, int]]:
        """Cuts rows into blocks so that no matrix of `wide` logits exceeds a bound."""
        size = min(BLOCK_ROWS, max(1, LOGIT_BYTES // (4 * max(1, wide))))
        return ((begin, min(begin + size, rows)) for begin in range(0, rows, size))


def memory_bytes(config: ResolvedConfig, spec: LayerSpec, ranks: int) -> int:
    """Memory of an output layer on each of so many ranks: weights, moments and what finds its neurons."""
    own = -(-spec.neurons // ranks)
    weight = STORAGE[config.weights].itemsize + len(MOMENTS[config.optimizer]) * STORAGE[config.moments].itemsize
    tables = 0 if spec.hashing is None else table_bytes(config, spec, spec.hashing, ranks)
    return own * (padded(spec.inputs) * weight + 40) + tables + cell_bytes(config, spec, 1)[1]
