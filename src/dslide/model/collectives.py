"""What the ranks of one network tell each other in a step. Each rank owns a stripe of every layer (shard.py).

  gather_columns   activations of own neurons -> those of all neurons, (rows, all)
  sum_columns      each rank's share of gradients, (rows, all) -> their sum for own neurons, (rows, own)
  gather_sparse, sum_sparse   the same behind a sampled layer, where activations are sparse
  normaliser       each rank's reference and sum of exponentials -> logarithm of the normaliser over all neurons
  best_hits        each rank's hash hits -> those that are among the best of all ranks

All begin at once and give a function that waits for the rest, so that a rank can compute meanwhile. With one rank
nothing is copied or rounded. Numbers cross in the wire format asked for; own ones are rounded alike, so that every rank
computes with the same numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.comm import Communicator
from dslide.comm.votes import Vote, Votes
from dslide.model.activations import Floats, Ids, Offsets, Sparse, aligned_zeros, padded
from dslide.model.sharding import Shard

HITS = "hits"  # the exchange in which ranks compete for a row's best hash hits
SUMMARY = struct.Struct("<ddBB")  # loss, active neurons, finite, vote


@dataclass(frozen=True)
class StepSummary:
    """What all ranks together know of a step."""

    loss: float  # summed over rows
    active: float  # active output neurons that a row saw
    finite: bool  # all gradients are
    votes: Votes


class Collectives:
    """The exchanges of one network."""

    def __init__(self, comm: Communicator, wire: str):
        self.comm, self.wire = comm, wire
        self.shard = Shard(comm.rank, comm.size)

    def gather_columns(self, name: str, z: Floats, width: int, exact: bool = False) -> Callable[[Floats], None]:
        """z: activations of own neurons, (rows, padded own). The function fills (rows, padded width)."""
        count = self.shard.count(width)
        message = _core.wire_encode(z, 0, 1, count, "float32" if exact else self.wire)
        flight = self.comm.post(name, [message] * self.shard.size)

        def finish(out: Floats) -> None:
            for rank, content in enumerate(flight.wait()):
                _core.wire_decode(content, out, rank, self.shard.size, Shard(rank, self.shard.size).count(width), False)

        return finish

    def sum_columns(self, name: str, dx: Floats, width: int) -> Callable[[], Floats]:
        """dx: this rank's share, (rows, padded width). The function gives own columns summed, (rows, padded own)."""
        if self.shard.size == 1:
            return lambda: dx
        size = self.shard.size
        messages = [
            _core.wire_encode(dx, rank, size, Shard(rank, size).count(width), self.wire) for rank in range(size)
        ]
        flight = self.comm.post(name, messages)

        def finish() -> Floats:
            count = self.shard.count(width)
            total = aligned_zeros(len(dx), padded(count))
            for content in flight.wait():
                _core.wire_decode(content, total, 0, 1, count, True)
            return total

        return finish

    def gather_sparse(self, name: str, part: Sparse) -> Sparse:
        """Rows of all neurons out of the rows of own neurons, both by number in the whole layer. They cross by number
        among a rank's own."""
        if self.shard.size == 1:
            return part
        lengths = np.diff(part.offsets).astype(np.int32)
        values = _core.wire_encode(part.values[None, :], 0, 1, len(part.values), self.wire)
        message = b"".join((lengths.tobytes(), (part.ids // self.shard.size).tobytes(), values))
        rows, ids, numbers = [], [], []
        for rank, content in enumerate(self.comm.all_gather(name, message)):
            each = np.frombuffer(content, np.int32, part.rows)
            count = int(each.sum())
            rows.append(np.repeat(np.arange(part.rows), each))
            own = np.frombuffer(content, np.int32, count, 4 * part.rows)
            ids.append(Shard(rank, self.shard.size).whole(own))
            found = np.empty((1, count), np.float32)
            _core.wire_decode(memoryview(content)[4 * (part.rows + count) :], found, 0, 1, count, False)
            numbers.append(found[0])
        row, neuron = np.concatenate(rows), np.concatenate(ids)
        order = np.lexsort((neuron, row))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=part.rows))]).astype(np.int64)
        return Sparse(offsets, neuron[order], np.concatenate(numbers)[order])

    def sum_sparse(self, name: str, a: Sparse, da: Floats) -> Floats:
        """da: this rank's share of the gradients of the elements of `a`. Gives the sum for those of own neurons."""
        if self.shard.size == 1:
            return da
        owner = a.ids % self.shard.size
        pieces = [da[None, owner == rank] for rank in range(self.shard.size)]
        messages = [_core.wire_encode(np.ascontiguousarray(p), 0, 1, p.shape[1], self.wire) for p in pieces]
        total = np.zeros_like(pieces[self.shard.rank])
        for content in self.comm.post(name, messages).wait():
            _core.wire_decode(content, total, 0, 1, total.shape[1], True)
        summed: Floats = total[0]
        return summed

    def normaliser(self, reference: Floats, total: Floats) -> Callable[[], Floats]:
        """The function gives the logarithm of the sum of exponentials of all ranks, (rows)."""
        if self.shard.size == 1:
            return lambda: reference + np.log(total)
        flight = self.comm.post("normaliser", [np.stack([reference, total]).tobytes()] * self.shard.size)

        def finish() -> Floats:
            parts = np.stack([np.frombuffer(content, np.float32).reshape(2, -1) for content in flight.wait()])
            largest = parts[:, 0].max(axis=0)
            with np.errstate(invalid="ignore"):  # a rank without active neurons has reference -inf and sum 0
                shares = np.where(parts[:, 1] > 0, parts[:, 1] * np.exp(parts[:, 0] - largest), 0)
            result: Floats = (largest + np.log(shares.sum(axis=0, dtype=np.float32))).astype(np.float32)
            return result

        return finish

    def best_hits(
        self, offsets: Offsets, ids: Ids, ranking: npt.NDArray[np.uint32], want: int
    ) -> Callable[[], tuple[Offsets, Ids]]:
        """Own hits with their rankings, at most `want` in a row. The function gives those that are among the `want`
        best of all ranks."""
        if self.shard.size == 1:
            return lambda: (offsets, ids)
        rows = len(offsets) - 1
        own = np.zeros((rows, want), np.uint32)  # 0: none
        inside = np.arange(len(ids)) - np.repeat(offsets[:-1], np.diff(offsets))
        row = np.repeat(np.arange(rows), np.diff(offsets))
        own[row, inside] = ranking
        flight = self.comm.post(HITS, [own.tobytes()] * self.shard.size)

        def finish() -> tuple[Offsets, Ids]:
            everyone = [np.frombuffer(content, np.uint32).reshape(rows, want) for content in flight.wait()]
            ranked = np.concatenate(everyone, axis=1)
            least = np.partition(ranked, ranked.shape[1] - want, axis=1)[:, ranked.shape[1] - want]
            keep = ranking >= least[row]
            before = np.concatenate([[0], np.cumsum(keep, dtype=np.int64)])
            return before[offsets], ids[keep]

        return finish

    def summary(self, loss: float, active: float, finite: bool, vote: Vote = Vote.NONE) -> Callable[[], StepSummary]:
        """The function gives the sums of losses and active neurons over all ranks, and their votes."""
        if self.shard.size == 1:
            return lambda: StepSummary(loss, active, finite, Votes(vote, vote))
        flight = self.comm.post("summary", [SUMMARY.pack(loss, active, finite, vote)] * self.shard.size)

        def finish() -> StepSummary:
            losses, actives, finites, votes = zip(*(SUMMARY.unpack(content) for content in flight.wait()), strict=True)
            return StepSummary(sum(losses), sum(actives), all(finites), Votes.count(votes))

        return finish

    def best_labels(self, ids: Ids, scores: Floats) -> tuple[Ids, Floats]:
        """The best of all ranks' best labels, (rows, k) each; ids are numbers among own neurons."""
        if self.shard.size == 1:
            return ids, scores
        k = ids.shape[1]
        message = self.shard.whole(ids).tobytes() + scores.tobytes()
        parts = [np.frombuffer(content, np.int32).reshape(2, -1, k) for content in self.comm.all_gather("top", message)]
        all_ids = np.concatenate([part[0] for part in parts], axis=1)
        all_scores = np.concatenate([part[1].view(np.float32) for part in parts], axis=1)
        # best first, ties to the lower number; what stands for nothing (-1) comes last
        order = np.lexsort((all_ids, -all_scores, all_ids < 0), axis=1)[:, :k]
        return np.take_along_axis(all_ids, order, axis=1), np.take_along_axis(all_scores, order, axis=1)

    def gather_scores(self, scores: Floats, owned: npt.NDArray[np.int64], labels: int) -> Floats:
        """Scores of some labels, (rows, labels), out of those that each rank has for its own, at the places `owned`."""
        if self.shard.size == 1:
            return scores
        places = self.comm.gather_objects("places", owned.tolist())
        out = np.empty((len(scores), labels), np.float32)
        for at, content in zip(places, self.comm.all_gather("scores", scores.tobytes()), strict=True):
            out[:, at] = np.frombuffer(content, np.float32).reshape(len(scores), -1)
        return out
