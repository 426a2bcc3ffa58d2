"""What the ranks of one network exchange in a step. Each owns a share of the neurons of every layer (sharding.py).

  all_gather        activations of own neurons -> those of all neurons, (rows, all)
  reduce_scatter    each rank's share of gradients, (rows, all) -> their sum for own neurons, (rows, own)
  log_normaliser    each rank's reference and sum of exponentials -> log of the softmax normaliser over all neurons
  best_hits         each rank's hash hits -> those that are among the best of all ranks
  summary           each rank's loss, vote and gradient of the label prior's scales -> those of all ranks

All begin at once and return a Future, so that a rank can compute while messages travel. With one rank nothing is copied
or rounded. Numbers cross in the wire format of the options; own ones are rounded alike, so that every rank computes
with the same numbers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.comm import Communicator
from dslide.comm.future import Future
from dslide.comm.votes import Vote, Votes
from dslide.model.activations import Activations, Dense
from dslide.model.retriever import Hits
from dslide.model.sharding import Shard
from dslide.util.arrays import Floats, Ids, aligned_zeros, padded
from dslide.util.csr import Csr, Lists, indptr_of

HASH_HITS = "hash hits"  # name of the exchange in which ranks compete for a row's best hits
SUMMARY = struct.Struct("<ddBB")  # loss, active neurons, finite, vote
NOTHING: npt.NDArray[np.float64] = np.zeros(0)


@dataclass(frozen=True)
class StepSummary:
    """What all ranks together know of a step."""

    loss: float  # summed over rows
    active: float  # active output neurons that a row saw
    finite: bool  # all gradients are
    votes: Votes
    sums: npt.NDArray[np.float64]  # of whatever else is summed over ranks, in the order of ranks


class Collectives:
    """The exchanges of one network. `wire` is the format of activations and gradients on the network."""

    def __init__(self, comm: Communicator, wire: str) -> None:
        self.comm, self.wire = comm, wire
        self.shard = Shard.of(comm)

    # ---- activations and gradients --------------------------------------------------------------------------------

    def all_gather(self, name: str, z: Floats, width: int, into: Floats, exact: bool = False) -> Future[None]:
        """z: activations of own neurons, (rows, padded own); fills `into`, (rows, padded width). `exact`: float32."""
        message = _core.wire_encode(z, 0, 1, self.shard.count(width), "float32" if exact else self.wire)
        exchange = self.comm.post_to_all(name, message)
        return Future(lambda: _core.wire_decode_shares(exchange.wait(), into, self.shard.every, width))

    def all_gather_sparse(self, name: str, own: Csr) -> Csr:
        """Rows over all neurons from the rows over own neurons, both by number in the whole layer. Messages have the
        local numbers."""
        if self.shard.size == 1:
            return own
        lengths = np.diff(own.indptr).astype(np.int32)
        values = _core.wire_encode(own.values[None, :], 0, 1, own.nnz, self.wire)
        message = b"".join((lengths.tobytes(), self.shard.to_local(own.indices).tobytes(), values))
        rows, ids, numbers = [], [], []
        for rank, content in enumerate(self.comm.all_gather(name, message)):
            each = np.frombuffer(content, np.int32, own.rows)
            count = int(each.sum())
            rows.append(np.repeat(np.arange(own.rows), each))
            ids.append(self.shard.of_rank(rank).to_global(np.frombuffer(content, np.int32, count, 4 * own.rows)))
            found = np.empty((1, count), np.float32)
            _core.wire_decode(memoryview(content)[4 * (own.rows + count) :], found, 0, 1, count, False)
            numbers.append(found[0])
        row, neuron = np.concatenate(rows), np.concatenate(ids)
        order = np.lexsort((neuron, row))
        indptr = indptr_of(np.bincount(row, minlength=own.rows))
        return Csr(indptr, neuron[order], np.concatenate(numbers)[order])

    def reduce_scatter(self, name: str, a: Activations, da: Floats, width: int) -> Future[Floats]:
        """da: this rank's share of the gradients of the activations `a`. Dense: (rows, padded width) -> the sum for own
        columns, (rows, padded own). Sparse: a value per element -> the sum for elements of own neurons."""
        if self.shard.size == 1:
            return Future.done(da)
        return self._reduce_columns(name, da, width) if isinstance(a, Dense) else self._reduce_elements(name, a, da)

    def _reduce_columns(self, name: str, da: Floats, width: int) -> Future[Floats]:
        exchange = self.comm.post(name, _core.wire_encode_shares(da, self.shard.every, width, self.wire))

        def finish() -> Floats:
            count = self.shard.count(width)
            total = aligned_zeros(len(da), padded(count))
            _core.wire_decode_sum(exchange.wait(), total, count)
            return total

        return Future(finish)

    def _reduce_elements(self, name: str, a: Csr, da: Floats) -> Future[Floats]:
        pieces = [da[None, self.shard.of_rank(rank).owns(a.indices)] for rank in range(self.shard.size)]
        messages = [_core.wire_encode(np.ascontiguousarray(p), 0, 1, p.shape[1], self.wire) for p in pieces]
        exchange = self.comm.post(name, messages)

        def finish() -> Floats:
            total = np.zeros_like(pieces[self.shard.rank])
            _core.wire_decode_sum(exchange.wait(), total, total.shape[1])
            summed: Floats = total[0]
            return summed

        return Future(finish)

    # ---- the output layer -------------------------------------------------------------------------------------------

    def log_normaliser(self, reference: Floats, total: Floats) -> Future[Floats]:
        """The log of the sum of exponentials over all ranks, (rows), from each rank's reference (the largest logit, or
        near it) and sum of exp(logit - reference)."""
        if self.shard.size == 1:
            return Future(lambda: reference + np.log(total))
        exchange = self.comm.post_to_all("normaliser", np.stack([reference, total]).tobytes())

        def finish() -> Floats:
            result = np.empty(len(reference), np.float32)
            _core.log_normaliser(exchange.wait(), result)
            return result

        return Future(finish)

    def best_hits(self, hits: Hits, want: int) -> Future[Lists]:
        """Own hits, at most `want` in a row -> those that are among the `want` best of all ranks."""
        lists, ranking = hits.lists, hits.ranking
        if self.shard.size == 1 or ranking is None:
            return Future.done(lists)
        if ranking.dtype == np.uint64:
            return self._best_hits_by_long_keys(lists, ranking, want)
        table = _core.ranking_table(lists.indptr, ranking, want)
        exchange = self.comm.post_to_all(HASH_HITS, table)
        return Future(lambda: Lists(*_core.best_hits(lists.indptr, lists.indices, ranking, exchange.wait(), want)))

    def _best_hits_by_long_keys(self, lists: Lists, ranking: npt.NDArray[Any], want: int) -> Future[Lists]:
        """As `best_hits`, for keys of 64 bits: logits, with ties by label."""
        own = np.zeros((lists.rows, want), ranking.dtype)  # 0: none
        row = lists.row_numbers()
        own[row, np.arange(lists.nnz) - lists.indptr[row]] = ranking
        exchange = self.comm.post(HASH_HITS, [own.tobytes()] * self.shard.size)

        def finish() -> Lists:
            everyone = [np.frombuffer(content, own.dtype).reshape(own.shape) for content in exchange.wait()]
            ranked = np.concatenate(everyone, axis=1)
            least = np.partition(ranked, ranked.shape[1] - want, axis=1)[:, ranked.shape[1] - want]
            return lists.where(ranking >= least[row])

        return Future(finish)

    def summary(
        self, loss: float, active: float, finite: bool, vote: Vote = Vote.NONE, more: npt.NDArray[np.float64] = NOTHING
    ) -> Future[StepSummary]:
        """The sums of losses, active neurons and `more` over all ranks, and their votes."""
        if self.shard.size == 1:
            return Future.done(StepSummary(loss, active, finite, Votes(vote, vote), more))
        message = SUMMARY.pack(loss, active, finite, vote) + more.tobytes()
        exchange = self.comm.post_to_all("summary", message)

        def finish() -> StepSummary:
            came = exchange.wait()
            losses, actives, finites, votes = zip(*(SUMMARY.unpack_from(content) for content in came), strict=True)
            sums = sum(
                (np.frombuffer(content, np.float64, offset=SUMMARY.size) for content in came), np.zeros_like(more)
            )
            return StepSummary(sum(losses), sum(actives), all(finites), Votes.count(votes), sums)

        return Future(finish)

    # ---- prediction -------------------------------------------------------------------------------------------------

    def best_labels(self, ids: Ids, scores: Floats) -> tuple[Ids, Floats]:
        """The best of all ranks' best labels, (rows, k) each; given ids are local numbers."""
        if self.shard.size == 1:
            return ids, scores
        k = ids.shape[1]
        message = self.shard.to_global(ids).tobytes() + scores.tobytes()
        parts = [np.frombuffer(content, np.int32).reshape(2, -1, k) for content in self.comm.all_gather("top", message)]
        all_ids = np.concatenate([part[0] for part in parts], axis=1)
        all_scores = np.concatenate([part[1].view(np.float32) for part in parts], axis=1)
        # best first, ties to the lower number; -1, no label, comes last
        order = np.lexsort((all_ids, -all_scores, all_ids < 0), axis=1)[:, :k]
        return np.take_along_axis(all_ids, order, axis=1), np.take_along_axis(all_scores, order, axis=1)

    def gather_scores(self, scores: Floats, owned: npt.NDArray[np.int64], labels: int) -> Floats:
        """Scores of some labels, (rows, labels), from those that each rank has for its own, at the places `owned`."""
        if self.shard.size == 1:
            return scores
        places = self.comm.gather_objects("places", owned.tolist())
        out = np.empty((len(scores), labels), np.float32)
        for at, content in zip(places, self.comm.all_gather("scores", scores.tobytes()), strict=True):
            out[:, at] = np.frombuffer(content, np.float32).reshape(len(scores), -1)
        return out
