"""Finds the neurons of a wide layer that an input is likely to excite, through locality-sensitive hash tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from .activations import Activations, Dense, Ids, Offsets
from .config import Config
from .hashing import automatic

Codes = npt.NDArray[np.uint32]
NEURONS_AT_A_TIME = 1 << 16  # hashed together, which bounds the memory for their codes


class Sampler:
    """Hash functions, the tables over a layer's neurons, and which neurons moved since they were last hashed."""

    def __init__(self, neurons: int, inputs: int, family: str, config: Config, seed: int):
        k, tables, bits = automatic(neurons, inputs, family)
        k, tables, bits = config.hash_k or k, config.tables or tables, config.table_bits or bits
        self.inputs, self.config, self.seed = inputs, config, seed
        self.functions = _core.HashFunctions(family, inputs, k, tables, bits, seed)
        self.tables = _core.Tables(neurons, tables, bits, config.bucket_size, config.bucket_policy, seed)
        self.query = _core.Query(self.tables)
        self.moved = np.ones(neurons, np.bool_)

    def touch(self, ids: Ids) -> None:
        """Notes that the weights of these neurons changed."""
        self.moved[ids] = True

    def renew(self, codes_of: Callable[[Any, Ids], Codes]) -> int:
        """Hashes the neurons that moved and rebuilds the buckets; returns how many moved. `codes_of` takes the hash
        functions and numbers of neurons, and gives their bucket numbers, (neurons, tables)."""
        ids = np.flatnonzero(self.moved).astype(np.int32)
        for begin in range(0, len(ids), NEURONS_AT_A_TIME):
            part = ids[begin : begin + NEURONS_AT_A_TIME]
            self.tables.set_codes(part, codes_of(self.functions, part))
        self.tables.renew()
        self.moved[:] = False
        return len(ids)

    def codes(self, x: Activations) -> Codes:
        """Bucket numbers of the inputs in each table, (rows, tables)."""
        if isinstance(x, Dense):
            return self.functions.dense(x.values[:, : self.inputs])
        return self.functions.sparse(x.offsets, x.ids, x.values)

    def hits(self, x: Activations, want: int, step: int) -> tuple[Offsets, Ids]:
        """For each row at most `want` neurons that hash like it: offsets (rows + 1) and neurons."""
        codes = self.codes(x)
        found: tuple[Any, ...]
        if self.config.probe == "vanilla":
            found = self.query.vanilla(codes, want, self.seed, step)
        elif self.config.probe == "topk":
            found = self.query.topk(codes, want, self.seed, step)
        else:
            found = self.query.threshold(codes, self.config.probe_threshold, want, self.seed, step)
        return found[0], found[1]

    def candidates(self, x: Activations) -> tuple[Offsets, Ids]:
        """For each row every neuron that shares a bucket with it: offsets (rows + 1) and neurons."""
        offsets, ids, _ = self.query.candidates(self.codes(x))
        return offsets, ids
