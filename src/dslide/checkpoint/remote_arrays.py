"""Arrays of a shard whose files lie on the disks of other ranks.

For every reader and every file that it needs, one rank provides the file: the reader itself if it has it. All ranks
know who provides what, so they need not agree on the messages of an array: blocks of rows, at most `BLOCK` bytes from
one rank to all others together at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dslide.checkpoint.manifest import OPTIMIZER, WEIGHTS
from dslide.checkpoint.reshard import Layouts, Opened, SavedArrays, ShardArrays, ShardFile, common, placeholder
from dslide.comm import Communicator
from dslide.comm.frames import Buffer
from dslide.model import linear
from dslide.model.label_prior import LINEAR, PREFIX, TYPES, has_label_prior, prior_arrays
from dslide.model.sharding import Shard
from dslide.model.state_layout import ArrayLayout, is_parameter
from dslide.util.arrays import Array

BLOCK = 1 << 23  # bytes

Providers = list[dict[ShardFile, int]]  # [reader]: the rank that provides each file it needs
Piece = tuple[ShardFile, int, slice]  # of what a reader has in common with a file's array: which part, and its rows
P = TypeVar("P")


def open_arrays(
    arrays: SavedArrays, comm: Communicator, optimizer: bool, providers: Providers, opened: Opened
) -> ShardArrays:
    """The arrays of this rank's shard. A collective; `opened` are all files that this rank provides."""
    shard = Shard.of(comm)
    priors = _exchange_priors(arrays, comm, providers, opened)
    prior = comm.together("label prior", lambda: arrays.prior(priors, shard))
    local = {source: opened[source] for source, provider in providers[comm.rank].items() if provider == comm.rank}
    layouts = arrays.layouts(optimizer)
    if all(provider == reader for reader, given in enumerate(providers) for provider in given.values()):
        return ShardArrays(layouts, local, shard, prior)
    return RemoteArrays(layouts, local, shard, prior, comm, providers, opened)


class RemoteArrays(ShardArrays):
    """A shard's arrays where some rank lacks files. Those of which this rank lacks a part are read after `receive`."""

    def __init__(
        self, layouts: Layouts, local: Opened, shard: Shard, prior: Mapping[str, Array],
        comm: Communicator, providers: Providers, opened: Opened,
    ) -> None:  # fmt: skip
        super().__init__(layouts, local, shard, prior)
        self._comm, self._providers, self._opened = comm, providers, opened
        self._is_received = False
        own = providers[comm.rank]
        self._incomplete = {name for name, layout in layouts.items() if _pieces(name, layout, shard, own)}

    def receive(self, into: Mapping[str, Array] | None = None) -> None:
        """Transfers all that any rank lacks, the first time. A collective. What this rank receives is written to the
        array of its name in `into`, or to a new one if that is missing or read-only."""
        if self._is_received:
            return
        given = {name: array for name, array in (into or {}).items() if array.flags.writeable}

        def check() -> None:
            for name in self._incomplete & given.keys():
                self._check_fit(name, given[name])

        self._comm.together("arrays to receive", check)
        for name, layout in self._layouts.items():
            if name in self._incomplete:
                self._in_memory[name] = given[name] if name in given else self._empty(layout)
                super()._fill(name, self._in_memory[name])  # with what is here
            self._transfer(name, layout)
        self._is_received = True

    def _fill(self, name: str, into: Array) -> None:
        if name in self._incomplete:
            raise RuntimeError(f"array {name} is on the disks of other ranks: call receive() on all ranks first")
        super()._fill(name, into)

    def _transfer(self, name: str, layout: ArrayLayout) -> None:
        """Receives what other ranks provide of an array, and sends them what they need."""
        size = self._comm.size
        pieces = {
            (provider, reader): its
            for reader in range(size)
            for provider, its in _pieces(name, layout, self._shard.of_rank(reader), self._providers[reader]).items()
        }

        def give(reader: int, piece: Piece) -> Buffer:
            source, which, some = piece
            file = self._opened[source]
            theirs = common(layout, self._shard.of_rank(reader), source.writer)[which][1]
            rows = np.ascontiguousarray(file.arrays[name][theirs][some])
            file.release()
            return rows.reshape(-1).view(np.uint8).data

        def take(_: int, piece: Piece, content: Buffer) -> None:
            source, which, some = piece
            rows = self._in_memory[name][common(layout, self._shard, source.writer)[which][0]][some]
            rows[...] = np.frombuffer(content, layout.dtype).reshape(rows.shape)

        send_pieces(self._comm, f"array {name}", pieces, give, take)


def _pieces(name: str, layout: ArrayLayout, reader: Shard, given: Mapping[ShardFile, int]) -> dict[int, list[Piece]]:
    """The pieces in which a reader gets an array from other ranks, by the rank that provides them."""
    kind = WEIGHTS if is_parameter(name) else OPTIMIZER
    needed = [source for source in given if source.kind == kind]
    if layout.axis is None:  # all files have the same array
        needed = [] if reader.rank in (given[source] for source in needed) else needed[:1]
    pieces: dict[int, list[Piece]] = {}
    for source in needed:
        if given[source] == reader.rank:
            continue
        for which, (own, _) in enumerate(common(layout, reader, source.writer)):
            part = placeholder(layout, reader)[own]
            step = max(1, BLOCK // reader.size // max(1, part[:1].nbytes))  # rows
            for begin in range(0, len(part) if part.size else 0, step):
                pieces.setdefault(given[source], []).append((source, which, slice(begin, begin + step)))
    return pieces


def send_pieces(
    comm: Communicator, what: str, pieces: Mapping[tuple[int, int], Sequence[P]], give: Callable[[int, P], Buffer],
    take: Callable[[int, P, Buffer], None],
) -> None:  # fmt: skip
    """Sends `pieces[sender, receiver]` for each pair of ranks, one of each pair at a time. A collective, with the same
    `pieces` on every rank; `give(receiver, piece)` makes the content of one, `take(sender, piece, content)` gets it."""
    ranks = range(comm.size)
    for number in range(max(map(len, pieces.values()), default=0)):
        current = {pair: its[number] for pair, its in pieces.items() if number < len(its)}
        outgoing = [give(to, current[comm.rank, to]) if (comm.rank, to) in current else b"" for to in ranks]
        for source, content in enumerate(comm.post(what, outgoing).wait()):
            if (source, comm.rank) in current:
                take(source, current[source, comm.rank], content)


def send_named(
    comm: Communicator, what: str, outgoing: Mapping[int, Mapping[str, Buffer]]
) -> dict[int, dict[str, bytearray]]:
    """Sends named bytes of any length by receiver; returns what came by sender. A collective."""
    lengths = [(to, {name: len(content) for name, content in its.items()}) for to, its in outgoing.items()]
    of_all = enumerate(comm.gather_objects(f"sizes of {what}", lengths))
    sizes: dict[tuple[int, int], dict[str, int]] = {(source, to): its for source, all_ in of_all for to, its in all_}
    came = {source: {name: bytearray() for name in its} for (source, to), its in sizes.items() if to == comm.rank}
    step = max(1, BLOCK // comm.size)
    pieces = {
        pair: [(name, begin) for name, size in its.items() for begin in range(0, size, step)]
        for pair, its in sizes.items()
    }

    def give(to: int, piece: tuple[str, int]) -> Buffer:
        name, begin = piece
        return memoryview(outgoing[to][name])[begin : begin + step]

    def take(source: int, piece: tuple[str, int], content: Buffer) -> None:
        came[source][piece[0]] += content  # pieces of a name come in order

    send_pieces(comm, what, pieces, give, take)
    return came


def _exchange_priors(
    arrays: SavedArrays, comm: Communicator, providers: Providers, opened: Opened
) -> list[tuple[Shard, Mapping[str, Array]]]:
    """The label prior in each file that this rank's shard needs; what other ranks send has this shard's labels only."""
    me = comm.rank
    found: dict[ShardFile, Mapping[str, Array]] = {}
    for source in dict.fromkeys(source for given in providers for source in given if source.kind == WEIGHTS):
        if providers[me].get(source) == me:
            found[source] = prior_arrays(opened[source].arrays)
        readers = [reader for reader, given in enumerate(providers) if given.get(source, reader) != reader]
        if not readers or not has_label_prior(arrays.config):
            continue
        outgoing = {}
        for reader in readers:
            if providers[reader][source] == me:
                prior = prior_for(Shard.of(comm).of_rank(reader), source.writer, prior_arrays(opened[source].arrays))
                outgoing[reader] = {name: array.tobytes() for name, array in prior.items()}
        for came in send_named(comm, "label priors", outgoing).values():
            found[source] = {name: np.frombuffer(came[name], TYPES[name.removeprefix(PREFIX)]) for name in came}
    return [(source.writer, found.get(source, {})) for source in providers[me] if source.kind == WEIGHTS]


def prior_for(shard: Shard, writer: Shard, prior: Mapping[str, Array]) -> dict[str, Array]:
    """A writer's label prior without weights of other labels than a shard's; labels keep the writer's numbers."""
    if not prior:
        return {}
    made = {name: prior[PREFIX + name] for name in TYPES}
    kept = shard.owns(writer.to_global(made["neuron"].astype(np.int64)))
    made["begin"] = np.concatenate([[0], np.cumsum(kept)])[made["begin"]]
    for name in ("neuron", "weight", "trained"):
        made[name] = made[name][kept] if len(made[name]) else made[name]
    saved = {name: made[LINEAR + name] for name in linear.TYPES}
    made |= {LINEAR + name: array for name, array in linear.only_labels(saved, shard, writer).items()}
    return {PREFIX + name: made[name].astype(dtype) for name, dtype in TYPES.items()}
