"""Arrays of a shard whose files lie on the disks of several ranks: each is put together on all ranks at once, and
whoever has a file sends the others what they need of it.

For every reader and every file that it needs, one rank provides it: the reader itself if it has it. All ranks know who
provides what, so they know without a word in which messages an array travels: blocks of rows, each rank sending all
others together no more than `BLOCK` bytes at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dslide.checkpoint.manifest import OPTIMIZER, WEIGHTS
from dslide.checkpoint.reshard import SOME_LINKS, OpenPart, Part, SavedArrays, ScatteredArrays, common, links_of_shard
from dslide.checkpoint.tensor_file import Array
from dslide.comm import Communicator
from dslide.comm.frames import Buffer
from dslide.errors import ModelError
from dslide.model.label_prior import PREFIX, TYPES, has_label_prior
from dslide.model.sharding import Shard
from dslide.model.state_layout import ArrayLayout, is_parameter

BLOCK = 1 << 23  # bytes

Providers = list[dict[Part, int]]  # [reader]: the rank that provides each file it needs
Piece = tuple[Part, int, int]  # rows of what a reader needs of a file's array
Opened = Mapping[Part, OpenPart]


def gather_arrays(
    arrays: SavedArrays, comm: Communicator, optimizer: bool, providers: Providers, opened: Opened
) -> Mapping[str, Array]:
    """The arrays of this rank's shard. Every rank calls it; `opened` are all files that this rank provides."""
    shard = Shard(comm.rank, comm.size)
    links = links_of_shard(_gather_links(arrays, comm, providers, opened), shard)
    local = [opened[part] for part, provider in providers[comm.rank].items() if provider == comm.rank]
    layouts = arrays.layouts(optimizer)
    if all(provider == reader for reader, given in enumerate(providers) for provider in given.values()):
        return ScatteredArrays(layouts, local, shard, links)
    return RemoteArrays(layouts, local, shard, links, comm, providers, opened)


class RemoteArrays(ScatteredArrays):
    """A shard's arrays, where not all of its files are here. To ask for an array is something that all ranks do
    together: each must ask for the same ones in the same order, as `Network` does. Which there are may be asked freely.
    """

    def __init__(
        self, layouts: dict[str, ArrayLayout], local: Sequence[OpenPart], shard: Shard, links: Mapping[str, Array],
        comm: Communicator, providers: Providers, opened: Opened,
    ) -> None:  # fmt: skip
        super().__init__(layouts, local, shard, links)
        self._comm, self._providers, self._opened = comm, providers, opened

    def __getitem__(self, name: str) -> Array:
        array = super().__getitem__(name)
        if name not in self._links and self._mapped(name) is not None:  # else it was filled in
            self._fetch(name, self._layouts[name], array)
        return array

    def _fill(self, name: str, layout: ArrayLayout, into: Array) -> None:
        super()._fill(name, layout, into)  # with what is here
        self._fetch(name, layout, into)

    def _fetch(self, name: str, layout: ArrayLayout, made: Array) -> None:
        """Fills in what others have, and sends what they need."""
        me, size = self._comm.rank, self._comm.size
        pieces = {
            (provider, reader): its
            for reader in range(size)
            for provider, its in _pieces(name, layout, Shard(reader, size), self._providers[reader]).items()
        }

        def give(reader: int, number: int) -> Buffer:
            part, begin, end = pieces[me, reader][number]
            file = self._opened[part].file
            theirs = common(layout, Shard(reader, size), part.writer)[1]
            rows = np.ascontiguousarray(file.arrays[name][theirs][begin:end])
            file.release()
            return rows.reshape(-1).view(np.uint8).data

        def take(provider: int, number: int, content: Buffer) -> None:
            part, begin, end = pieces[provider, me][number]
            into = made[common(layout, self._shard, part.writer)[0]][begin:end]
            into[...] = np.frombuffer(content, layout.dtype).reshape(into.shape)

        transfer(self._comm, f"array {name}", {pair: len(its) for pair, its in pieces.items()}, give, take)


def _pieces(name: str, layout: ArrayLayout, reader: Shard, given: Mapping[Part, int]) -> dict[int, list[Piece]]:
    """In which pieces a reader gets an array, by the rank that provides them."""
    kind = WEIGHTS if is_parameter(name) else OPTIMIZER
    needed = [part for part in given if part.kind == kind]
    if layout.axis is None:  # all files have the same
        needed = [] if reader.rank in (given[part] for part in needed) else needed[:1]
    pieces: dict[int, list[Piece]] = {}
    for part in needed:
        if given[part] == reader.rank:
            continue
        rows, row_bytes = _extent(layout, reader, part.writer)
        step = max(1, BLOCK // reader.size // max(1, row_bytes))
        for begin in range(0, rows if row_bytes else 0, step):
            pieces.setdefault(given[part], []).append((part, begin, min(rows, begin + step)))
    return pieces


def _extent(layout: ArrayLayout, reader: Shard, writer: Shard) -> tuple[int, int]:
    """Rows, and bytes of a row, of what a reader needs of a writer's array."""
    whole = np.broadcast_to(np.empty((), layout.dtype), layout.shape(reader))  # takes no memory
    shape = whole[common(layout, reader, writer)[0]].shape
    return shape[0], layout.dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))


def transfer(
    comm: Communicator, what: str, blocks: Mapping[tuple[int, int], int], give: Callable[[int, int], Buffer],
    take: Callable[[int, int, Buffer], None],
) -> None:  # fmt: skip
    """Sends so many blocks from one rank to another, for each pair, one of each pair at a time. Every rank calls it
    with the same `blocks`; `give(reader, number)` makes a block, `take(provider, number, content)` gets it."""
    me = comm.rank
    for number in range(max(blocks.values(), default=0)):
        outgoing = [give(to, number) if number < blocks.get((me, to), 0) else b"" for to in range(comm.size)]
        for source, content in enumerate(comm.post(what, outgoing).wait()):
            if number < blocks.get((source, me), 0):
                take(source, number, content)


def send_bytes(
    comm: Communicator, what: str, outgoing: Mapping[int, Buffer], sizes: Mapping[tuple[int, int], int]
) -> dict[int, bytearray]:
    """Sends bytes of any length, whose sizes by sender and receiver all ranks know; what came, by sender."""
    step = max(1, BLOCK // comm.size)
    came = {source: bytearray(size) for (source, to), size in sizes.items() if to == comm.rank}

    def take(source: int, number: int, content: Buffer) -> None:
        came[source][number * step : number * step + len(content)] = content

    def give(to: int, number: int) -> Buffer:
        return memoryview(outgoing[to])[number * step : (number + 1) * step]

    transfer(comm, what, {pair: -(-size // step) for pair, size in sizes.items()}, give, take)
    return came


# ---- links ----------------------------------------------------------------------------------------------------------


def _gather_links(
    arrays: SavedArrays, comm: Communicator, providers: Providers, opened: Opened
) -> list[tuple[Shard, Mapping[str, Array]]]:
    """The links in each file that this rank's shard needs; of those on other ranks, only the links to its labels."""
    me = comm.rank
    found: dict[Part, Mapping[str, Array]] = {}
    for part in dict.fromkeys(part for given in providers for part in given if part.kind == WEIGHTS):
        if providers[me].get(part) == me:
            found[part] = opened[part].links
        pairs = [(given[part], reader) for reader, given in enumerate(providers) if given.get(part, reader) != reader]
        if not pairs or not has_label_prior(arrays.config):
            continue
        outgoing = {
            reader: _packed(links_to(Shard(reader, comm.size), part.writer, opened[part].links))
            for provider, reader in pairs
            if provider == me
        }
        lengths = [[reader, len(content)] for reader, content in outgoing.items()]
        said = comm.gather_objects("lengths of links", lengths)
        sizes = {(provider, reader): size for provider, its in enumerate(said) for reader, size in its}
        for content in send_bytes(comm, "links", outgoing, sizes).values():
            found[part] = _unpacked(content, arrays.features, part.writer.count(arrays.labels))
    parts = [(part.writer, found.get(part, {})) for part in providers[me] if part.kind == WEIGHTS]

    def check() -> None:
        if len({bool(links) for _, links in parts}) > 1:
            raise ModelError(f"{arrays.folder}: damaged: {SOME_LINKS}")

    comm.together("links", check)
    return parts


def links_to(shard: Shard, writer: Shard, links: Mapping[str, Array]) -> dict[str, Array]:
    """The links of a writer to the labels of a shard, numbered as the writer does; `share` is that of all of its
    labels."""
    if not links:
        return {}
    begin, neuron, weight, share = (links[PREFIX + name] for name in TYPES)
    kept = (neuron.astype(np.int64) * writer.size + writer.rank) % shard.size == shard.rank
    before = np.concatenate([[0], np.cumsum(kept)])
    made = {"begin": before[begin], "neuron": neuron[kept], "weight": weight[kept], "share": share}
    return {PREFIX + name: made[name].astype(dtype) for name, dtype in TYPES.items()}


def _packed(links: Mapping[str, Array]) -> bytes:
    return b"".join(links[PREFIX + name].tobytes() for name in TYPES) if links else b""


def _unpacked(content: Buffer, features: int, labels: int) -> dict[str, Array]:
    """The links that `_packed` was given, from so many features to so many labels."""
    if not content:
        return {}
    lengths = {"begin": features + 1, "neuron": 0, "weight": 0, "share": labels}
    rest = len(content) - sum(lengths[name] * dtype.itemsize for name, dtype in TYPES.items())
    lengths["neuron"] = lengths["weight"] = rest // (TYPES["neuron"].itemsize + TYPES["weight"].itemsize)
    links, offset = {}, 0
    for name, dtype in TYPES.items():
        links[PREFIX + name] = np.frombuffer(content, dtype, lengths[name], offset)
        offset += links[PREFIX + name].nbytes
    return links
