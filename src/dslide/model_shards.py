"""Reads a shard of a saved model, whatever number of ranks wrote it.

Written by as many ranks, a shard is its own files, mapped. Otherwise its neurons lie scattered over the files of other
shards: neuron n belongs to rank n mod ranks. Each array is put together when it is asked for, straight from the mapped
files into its place, so that memory holds the result and little else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from .activations import aligned_zeros
from .config import Config
from .errors import ModelError
from .links import Links, links_of, regrouped
from .links import wanted as wants_links
from .model_files import OPTIMIZER, WEIGHTS, Manifest, check_content, check_size, shard_file
from .shard import Shard
from .state_layout import ArrayLayout, array_layouts, is_parameter
from .storage import checked
from .tensors import BLOCK, Array, TensorFile, open_tensors


def read_shard(
    folder: Path, manifest: Manifest, config: Config, features: int, labels: int, shard: Shard, optimizer: bool,
    verify: bool,
) -> Mapping[str, Array]:  # fmt: skip
    """The arrays of a shard. ModelError if a file that they need is missing, damaged or not of this network."""
    layouts = array_layouts(config, features, labels)
    writers = _writers(manifest.shards, shard)
    names = [(kind, shard_file(kind, w.rank, w.size), w) for kind in _kinds(optimizer) for w in writers]
    for kind, name, writer in names:
        _check(folder, manifest, kind, name, writer, verify)
    files: dict[str, list[tuple[Shard, TensorFile]]] = {}  # by array
    links: list[tuple[Shard, dict[str, Array]]] = []
    for kind, name, writer in names:
        file = open_tensors(folder / name)
        expected = {array: a for array, a in layouts.items() if is_parameter(array) == (kind == WEIGHTS)}
        linked = {}
        if kind == WEIGHTS and wants_links(config) and links_of(file.arrays):
            linked = _links(folder / name, file, features, writer.count(labels))
            links.append((writer, linked))
        _check_arrays(folder / name, {a: file.arrays[a] for a in file.arrays if a not in linked}, expected, writer)
        for array in expected:
            if array in file.arrays:
                files.setdefault(array, []).append((writer, file))
    files = {array: sources for array, sources in files.items() if len(sources) == len(writers)}  # not optional ones
    if links and len(links) < len(writers):
        raise ModelError(f"{folder}: damaged: some of its shards have links and others have none")
    if manifest.shards == shard.size:
        whole = {array: sources[0][1].arrays[array] for array, sources in files.items()}
        return whole | (links[0][1] if links else {})
    own_links = regrouped(links, shard) if links else {}
    return ScatteredArrays({array: layouts[array] for array in files}, files, shard, own_links)


class ScatteredArrays(Mapping[str, Array]):
    """A shard's arrays, each made anew from the files of other shards whenever it is asked for; but for those of links,
    which are given."""

    def __init__(
        self, layouts: dict[str, ArrayLayout], files: dict[str, list[tuple[Shard, TensorFile]]], shard: Shard,
        links: Mapping[str, Array],
    ) -> None:  # fmt: skip
        self._layouts, self._files, self._shard, self._links = layouts, files, shard, links

    def __getitem__(self, name: str) -> Array:
        if name in self._links:
            return self._links[name]
        layout = self._layouts[name]
        if layout.axis is None:  # the same on all ranks
            return np.array(self._files[name][0][1].arrays[name])
        shape = layout.shape(self._shard)
        made: Array = aligned_zeros(*shape, layout.dtype) if len(shape) == 2 else np.zeros(shape, layout.dtype)
        for writer, file in self._files[name]:
            given = file.arrays[name]
            own, theirs = common_neurons(layout.neurons, self._shard, writer)
            if layout.axis == 0:
                _copy(made[own], given[theirs], file)
            else:
                _copy(made[:, own], given[:, theirs], file)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter([*self._layouts, *self._links])

    def __len__(self) -> int:
        return len(self._layouts) + len(self._links)

    def __contains__(self, name: object) -> bool:
        return name in self._layouts or name in self._links


def common_neurons(neurons: int, a: Shard, b: Shard) -> tuple[slice, slice]:
    """The neurons of a layer that both shards own, by their local numbers in one and in the other. The shards, of
    different sizes, must be such that they can have some in common."""
    divisor = math.gcd(a.size, b.size)
    step = a.size * b.size // divisor  # between two common neurons of the whole layer
    turns = (b.rank - a.rank) // divisor * pow(a.size // divisor, -1, b.size // divisor) % (b.size // divisor)
    first = a.rank + a.size * turns
    count = len(range(first, neurons, step))

    def local(shard: Shard) -> slice:
        begin, stride = (first - shard.rank) // shard.size, step // shard.size
        return slice(begin, begin + count * stride, stride)

    return local(a), local(b)


def _links(path: Path, file: TensorFile, features: int, neurons: int) -> dict[str, Array]:
    """The arrays of the links in a shard's file; ModelError if they are damaged."""
    try:
        return Links.of_state(file.arrays, features, neurons, 1.0).state()
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _copy(into: Array, given: Array, file: TensorFile) -> None:
    """Copies what is given of the file, so that no more than a block of that is in memory."""
    rows = max(1, BLOCK // max(1, given.strides[0]))
    for begin in range(0, len(given), rows):
        into[begin : begin + rows] = given[begin : begin + rows]
        file.release()


def _writers(shards: int, shard: Shard) -> list[Shard]:
    """Those that own neurons of the shard, out of the `shards` that wrote a model."""
    divisor = math.gcd(shards, shard.size)
    return [Shard(rank, shards) for rank in range(shard.rank % divisor, shards, divisor)]


def _kinds(optimizer: bool) -> tuple[str, ...]:
    return (WEIGHTS, OPTIMIZER) if optimizer else (WEIGHTS,)


def _check(folder: Path, manifest: Manifest, kind: str, name: str, writer: Shard, verify: bool) -> None:
    """ModelError if the file is not there as the manifest says."""
    path = folder / name
    if name not in manifest.files:
        why = "; it was saved without what training needs to go on" if kind == OPTIMIZER else ""
        raise ModelError(f"{folder}: there is no {name}{why}")
    if writer.size > 1 and not path.exists():
        raise ModelError(
            f"{path}: is missing; rank {writer.rank} of {writer.size} wrote it, perhaps on another machine, and it has "
            f"to be copied here"
        )
    (check_content if verify else check_size)(path, manifest.files[name])


def _check_arrays(path: Path, arrays: dict[str, Array], expected: dict[str, ArrayLayout], writer: Shard) -> None:
    """ModelError if the arrays are not those of the network."""
    for name in arrays:
        if name not in expected:
            raise ModelError(f"{path}: array {name!r} is none of the network that config.json describes")
    for name, layout in expected.items():
        if layout.optional and name not in arrays:
            continue
        try:
            checked(arrays, name, layout.dtype, layout.shape(writer))
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
