"""What ranks exchange that bring rows of their own to an output layer whose neurons are split over them.

  gather_rows       each rank's hidden vectors and labels -> those of all ranks, in the order of ranks
  reduce_scatter    each rank's share of gradients, of all rows -> their sum for own rows
  own_values        what each rank found for its own labels of all rows -> all labels' of own rows

What is in `Collectives` besides is the same. A rank whose rows can't be used says so in `gather_rows`, and all ranks
raise its error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.comm import Communicator
from dslide.comm.agreement import check_alike, error_of_all
from dslide.comm.future import Future
from dslide.errors import UserError
from dslide.model.activations import Activations
from dslide.model.collectives import Collectives
from dslide.util.arrays import Floats, aligned_zeros, padded
from dslide.util.csr import Csr, indptr_of

_HEAD = struct.Struct("<I")  # bytes of JSON that follow

Rows = tuple[Floats, Csr]  # hidden vectors (rows, padded width), and the labels of these rows


class RowCollectives(Collectives):
    """The exchanges of one output layer. `counts` has how many of the present rows each rank brought."""

    def __init__(self, comm: Communicator, wire: str) -> None:
        super().__init__(comm, wire)
        self.counts: npt.NDArray[np.int64] = np.zeros(comm.size, np.int64)

    @property
    def own_rows(self) -> slice:
        """The rows of this rank among all."""
        begins = indptr_of(self.counts)
        return slice(int(begins[self.comm.rank]), int(begins[self.comm.rank + 1]))

    def gather_rows(
        self, name: str, width: int, make: Callable[[], Rows], facts: Mapping[str, Any], exact: bool = False
    ) -> Rows:
        """The rows of all ranks, each of which calls `make`; all raise its error if it fails on some. `facts` must be
        the same on all. `exact`: vectors cross as float32."""
        problem, rows = None, None
        try:
            rows = make()
        except UserError as error:
            if self.comm.size == 1:
                raise
            problem = [type(error).__name__, str(error)]
        if self.comm.size == 1:
            assert rows is not None
            self.counts[0] = len(rows[0])
            return rows
        came = self.comm.all_gather(name, self._message(rows, width, problem, facts, exact))
        heads, contents = zip(*(_split(memoryview(content)) for content in came), strict=True)
        if failure := error_of_all([head["problem"] for head in heads]):
            raise failure
        check_alike([head["facts"] for head in heads])
        self.counts[:] = [head["rows"] for head in heads]
        return self._joined([head["labels"] for head in heads], contents, width)

    def _message(
        self, rows: Rows | None, width: int, problem: list[str] | None, facts: Mapping[str, Any], exact: bool
    ) -> bytes:
        head: dict[str, Any] = {"problem": problem, "facts": facts}
        parts: list[Any] = []
        if rows is not None:
            x, labels = rows
            head |= {"rows": len(x), "labels": labels.nnz}
            parts = [np.diff(labels.indptr).astype(np.int32).data, labels.indices.data, labels.values.data]
            if len(x):
                parts.append(_core.wire_encode(x, 0, 1, width, "float32" if exact else self.wire))
        text = json.dumps(head).encode()
        return b"".join((_HEAD.pack(len(text)), text, *parts))

    def _joined(self, labels: list[int], contents: tuple[memoryview, ...], width: int) -> Rows:
        total = int(self.counts.sum())
        x = aligned_zeros(total, padded(width))
        lengths, ids, values = [], [], []
        for (begin, end), count, content in zip(pairwise(indptr_of(self.counts)), labels, contents, strict=True):
            rows = int(end - begin)
            lengths.append(np.frombuffer(content, np.int32, rows))
            ids.append(np.frombuffer(content, np.int32, count, 4 * rows))
            values.append(np.frombuffer(content, np.float32, count, 4 * (rows + count)))
            if rows:
                _core.wire_decode(content[4 * (rows + 2 * count) :], x[begin:end], 0, 1, width, False)
        return x, Csr(indptr_of(np.concatenate(lengths)), np.concatenate(ids), np.concatenate(values))

    def reduce_scatter(self, name: str, a: Activations, da: Floats, width: int) -> Future[Floats]:
        """da: this rank's share of the gradients of all rows, (rows, padded width) -> the sum for own rows."""
        if self.comm.size == 1:
            return Future.done(da)
        messages = [
            _core.wire_encode(da[begin:end], 0, 1, width, self.wire) if end > begin else b""
            for begin, end in pairwise(indptr_of(self.counts))
        ]
        exchange = self.comm.post(name, messages)

        def finish() -> Floats:
            came = exchange.wait()
            total = aligned_zeros(int(self.counts[self.comm.rank]), da.shape[1])
            if len(total):
                _core.wire_decode_sum(came, total, width)
            return total

        return Future(finish)

    def own_values(self, name: str, values: Floats, labels: Csr) -> Floats:
        """`values`: of own labels of all rows, in their order, out of all `labels` -> those of all labels of own
        rows."""
        if self.comm.size == 1:
            return values
        spread = np.zeros(labels.nnz, np.float32)
        spread[self.shard.owns(labels.indices)] = values
        cuts = labels.indptr[indptr_of(self.counts)]
        came = self.comm.post(name, [spread[begin:end].tobytes() for begin, end in pairwise(cuts)]).wait()
        return np.asarray(sum(np.frombuffer(content, np.float32) for content in came), np.float32)


def _split(content: memoryview) -> tuple[dict[str, Any], memoryview]:
    """A message's head, and what follows it."""
    (length,) = _HEAD.unpack_from(content)
    return json.loads(bytes(content[_HEAD.size : _HEAD.size + length])), content[_HEAD.size + length :]
