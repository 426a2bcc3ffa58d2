"""Looks up the neurons of a wide layer that an input is likely to excite, in locality-sensitive hash tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.config import Config
from dslide.errors import ModelError
from dslide.model.activations import Activations, Dense, Input, sparse_elements
from dslide.model.hash_parameters import HashParameters
from dslide.model.retriever import Candidates, Hits
from dslide.model.sharding import WHOLE, Shard
from dslide.util.arrays import Ids
from dslide.util.csr import Lists

Codes = npt.NDArray[np.uint32]
HASHED_AT_ONCE = 1 << 16  # neurons, which bounds the memory for their codes


class LshIndex:
    """Hash functions, tables over a layer's own neurons, and which neurons moved since they were last hashed. The
    functions are those of the whole layer, the same on every rank."""

    def __init__(
        self, neurons: int, inputs: int, family: str, parameters: HashParameters, config: Config, seed: int,
        shard: Shard = WHOLE,
    ) -> None:  # fmt: skip
        own = shard.count(neurons)
        k, tables, bits = parameters
        self.inputs, self.config, self.seed, self.shard = inputs, config, seed, shard
        self.functions = _core.HashFunctions(family, inputs, k, tables, bits, seed)
        self.tables = _core.Tables(own, tables, bits, config.bucket_size, config.bucket_policy, seed)
        self.query = _core.Query(self.tables, shard.stripe)
        self.moved = np.ones(own, np.bool_)
        self.built = False
        self.rebuilds = 0

    def mark_moved(self, ids: Ids) -> None:
        """The weights of these neurons changed."""
        _core.mark(self.moved, ids)

    def rebuild(self, codes_of: Callable[[_core.HashFunctions, Ids], Codes]) -> int:
        """Hashes the neurons that moved and rebuilds the buckets; returns how many moved. `codes_of` gives the bucket
        numbers of neurons, (neurons, tables)."""
        ids = np.flatnonzero(self.moved).astype(np.int32)
        for begin in range(0, len(ids), HASHED_AT_ONCE):
            part = ids[begin : begin + HASHED_AT_ONCE]
            self.tables.set_codes(part, codes_of(self.functions, part))
        self._build()
        self.moved[:] = False
        return len(ids)

    def load(self, codes: Codes, moved: npt.NDArray[np.bool_]) -> None:
        """Restores saved tables: bucket numbers of own neurons, (tables, neurons), and which had moved. ModelError if
        these are no bucket numbers; if no neuron has one, tables had not been built yet."""
        if (codes == _core.NO_BUCKET).all():
            self.forget()
            return
        neurons = np.arange(len(moved), dtype=np.int32)
        for begin in range(0, len(neurons), HASHED_AT_ONCE):
            part = neurons[begin : begin + HASHED_AT_ONCE]
            try:
                self.tables.set_codes(part, np.ascontiguousarray(codes[:, begin : begin + len(part)].T))
            except ValueError as error:
                raise ModelError(f"hash tables: {error}") from None
        self._build()
        self.moved[:] = moved

    def forget(self) -> None:
        """The weights were replaced: every neuron has to be hashed again."""
        self.moved[:] = True
        self.built = False

    def look_up(self, x: Input, want: int, step: int, first_row: int = 0) -> Hits:
        """At most `want` own neurons for each row. `first_row` is the first row's number in the batch. With probe =
        vanilla each rank looks for its share of `want`."""
        codes = self._codes(x)
        if self.config.probe == "vanilla":
            indptr, ids = self.query.vanilla(codes, self.shard.count(want), self.seed, step, first_row)
            return Hits(Lists(indptr, ids), None)
        at_least = self.config.probe_threshold if self.config.probe == "threshold" else 1
        indptr, ids, _, ranking = self.query.threshold(codes, at_least, want, self.seed, step, first_row)
        return Hits(Lists(indptr, ids), ranking)

    def candidates(self, x: Activations) -> Candidates:
        """Every own neuron that shares a bucket with a row."""
        indptr, ids, *_ = self.query.candidates(self._codes(x))
        return Candidates(Lists(indptr, ids), np.arange(x.rows, dtype=np.int32))

    def _codes(self, x: Input) -> Codes:
        """Bucket numbers of inputs, (rows, tables)."""
        if isinstance(x, Dense):
            return self.functions.dense(x.values[:, : self.inputs])
        x = sparse_elements(x, self.inputs)
        return self.functions.sparse(x.indptr, x.indices, x.values)

    def _build(self) -> None:
        self.tables.rebuild()
        self.built = True
        self.rebuilds += 1


def index_bytes(parameters: HashParameters, neurons: int, copied: int) -> int:
    """Memory of an index over so many own neurons, rebuilding included; `copied`: bytes of weights that have to be
    copied to be hashed."""
    buckets = parameters.tables * (8 * neurons + 4 * ((1 << parameters.table_bits) + 1))  # codes, ids; bucket offsets
    rebuilding = 4 * neurons + copied + 4 * parameters.tables * min(neurons, HASHED_AT_ONCE)
    return buckets + rebuilding + neurons


def hidden_sampling(config: Config, neurons: int, share: float, rows: int) -> tuple[int, int]:
    """Hash hits for each row of a batch in a sampled hidden layer, and random negatives for the batch or each row: an
    eighth of the share that is to be active."""
    want = max(1, round(share * neurons))
    negatives = -(-want // 8)
    return max(1, (want - negatives) if config.active_sets == "row" else (want - negatives) // rows), negatives
