"""Finds the neurons of a wide layer that an input is likely to excite, through locality-sensitive hash tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.config import Config
from dslide.errors import ModelError
from dslide.model.activations import Activations, Dense, Ids, Offsets
from dslide.model.hash_parameters import automatic
from dslide.model.sharding import WHOLE, Shard

Codes = npt.NDArray[np.uint32]
Ranking = npt.NDArray[np.uint32]
FULL_BELOW = 8192  # outputs up to which "auto" computes all of them
NEURONS_AT_A_TIME = 1 << 16  # hashed together, which bounds the memory for their codes


class LshIndex:
    """Hash functions, the tables over a layer's own neurons, and which of them moved since they were last hashed. The
    functions are those for all `neurons` of the layer, the same on every rank."""

    def __init__(self, neurons: int, inputs: int, family: str, config: Config, seed: int, shard: Shard = WHOLE):
        k, tables, bits = automatic(neurons, inputs, family)
        own = shard.count(neurons)
        k, tables, bits = config.hash_k or k, config.tables or tables, config.table_bits or bits
        self.inputs, self.config, self.seed = inputs, config, seed
        self.functions = _core.HashFunctions(family, inputs, k, tables, bits, seed)
        self.tables = _core.Tables(own, tables, bits, config.bucket_size, config.bucket_policy, seed)
        self.query = _core.Query(self.tables, shard.rank, shard.size)
        self.moved = np.ones(own, np.bool_)
        self.built = False  # ever
        self.rebuilds = 0  # times that the buckets were made
        self.shard = shard

    def touch(self, ids: Ids) -> None:
        """Notes that the weights of these neurons changed."""
        _core.mark(self.moved, ids)

    def rebuild(self, codes_of: Callable[[Any, Ids], Codes]) -> int:
        """Hashes the neurons that moved and rebuilds the buckets; returns how many moved. `codes_of` takes the hash
        functions and numbers of neurons, and gives their bucket numbers, (neurons, tables)."""
        ids = np.flatnonzero(self.moved).astype(np.int32)
        for begin in range(0, len(ids), NEURONS_AT_A_TIME):
            part = ids[begin : begin + NEURONS_AT_A_TIME]
            self.tables.set_codes(part, codes_of(self.functions, part))
        self.tables.renew()
        self.moved[:] = False
        self.built = True
        self.rebuilds += 1
        return len(ids)

    def load(self, codes: Codes, moved: npt.NDArray[np.bool_]) -> None:
        """Takes up the tables as they were: bucket numbers of own neurons, (tables, neurons), and which had moved.
        ModelError if these are no buckets; if no neuron is in one, tables were not made yet."""
        if (codes == _core.NO_BUCKET).all():
            self.forget()
            return
        neurons = np.arange(len(moved), dtype=np.int32)
        for begin in range(0, len(neurons), NEURONS_AT_A_TIME):
            part = neurons[begin : begin + NEURONS_AT_A_TIME]
            try:
                self.tables.set_codes(part, np.ascontiguousarray(codes[:, begin : begin + len(part)].T))
            except ValueError as error:
                raise ModelError(f"hash tables: {error}") from None
        self.tables.renew()
        self.moved[:] = moved
        self.built = True
        self.rebuilds += 1

    def forget(self) -> None:
        """The weights are others now: every neuron is to be hashed again."""
        self.moved[:] = True
        self.built = False

    def codes(self, x: Activations) -> Codes:
        """Bucket numbers of the inputs in each table, (rows, tables)."""
        if isinstance(x, Dense):
            return self.functions.dense(x.values[:, : self.inputs])
        return self.functions.sparse(x.offsets, x.ids, x.values)

    def hits(self, x: Activations, want: int, step: int, first_row: int = 0) -> tuple[Offsets, Ids, Ranking | None]:
        """For each row at most `want` neurons that hash like it: offsets (rows + 1), neurons, and numbers by which they
        are to be compared with those of other ranks (highest first). `first_row` is the first row's number in the
        batch. With probe = vanilla there is no order among hits, and each rank looks for its share of `want` alone."""
        codes = self.codes(x)
        if self.config.probe == "vanilla":
            offsets, ids = self.query.vanilla(codes, self.shard.count(want), self.seed, step, first_row)
            return offsets, ids, None
        at_least = self.config.probe_threshold if self.config.probe == "threshold" else 1
        offsets, ids, _, ranking = self.query.threshold(codes, at_least, want, self.seed, step, first_row)
        return offsets, ids, ranking

    def candidates(self, x: Activations) -> tuple[Offsets, Ids]:
        """For each row every neuron that shares a bucket with it: offsets (rows + 1) and neurons."""
        offsets, ids, *_ = self.query.candidates(self.codes(x))
        return offsets, ids


def resolve_output(config: Config, labels: int) -> str:
    """What `output` stands for with this many labels: full, lsh or random."""
    if config.output != "auto":
        return config.output
    return "full" if labels <= FULL_BELOW else "lsh"


def hidden_sampling_sizes(config: Config, neurons: int, share: float, rows: int) -> tuple[int, int]:
    """Hash hits for each row of a batch in a sampled hidden layer, and random draws for the batch or each row: an
    eighth of the share that is to be active."""
    want = max(1, round(share * neurons))
    draws = -(-want // 8)
    return max(1, (want - draws) if config.active_sets == "row" else (want - draws) // rows), draws


def sampling_sizes(config: Config, labels: int) -> tuple[int, int]:
    """Hash hits for each row, and random draws for the batch or each row."""
    if config.active_sets == "shared":
        hits, draws = 4, min(labels, 2048)
    else:
        hits, draws = min(labels // 8 + 1, 256), min(labels // 8 + 1, 256)
    hits = hits if config.hash_hits < 0 else config.hash_hits
    draws = draws if config.random_negatives < 0 else config.random_negatives
    return (hits if resolve_output(config, labels) == "lsh" else 0), draws
