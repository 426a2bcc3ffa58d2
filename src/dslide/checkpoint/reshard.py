"""Reads a shard of a saved model, whatever number of ranks wrote it.

Written by as many ranks, a shard is its own files, mapped. Otherwise its neurons lie scattered over the files of other
shards: neuron n belongs to rank n mod ranks. Each array is put together when it is asked for, straight from the mapped
files into its place, so that memory holds the result and little else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dslide.checkpoint.manifest import OPTIMIZER, PROGRESS, WEIGHTS, Manifest, check_content, check_size, shard_file
from dslide.checkpoint.tensor_file import Array, TensorFile, copy_rows, open_tensors
from dslide.config import Config
from dslide.errors import ModelError
from dslide.model.label_prior import LabelPrior, has_label_prior, prior_arrays, regrouped
from dslide.model.sharding import Shard
from dslide.model.state_layout import ArrayLayout, array_layouts, is_parameter
from dslide.model.storage import checked
from dslide.util.arrays import aligned_zeros


class Part(NamedTuple):
    """One file of a model's arrays."""

    kind: str  # WEIGHTS or OPTIMIZER
    writer: Shard

    @property
    def name(self) -> str:
        return shard_file(self.kind, self.writer.rank, self.writer.size)


@dataclass(frozen=True)
class OpenPart:
    """One of them, mapped. `links` are those of its arrays that are of links."""

    part: Part
    file: TensorFile
    links: dict[str, Array]


def parts_of(manifest: Manifest, shard: Shard, optimizer: bool) -> list[Part]:
    """The files in which the arrays of a shard lie; ModelError if the model was saved without some."""
    divisor = math.gcd(manifest.shards, shard.size)
    writers = [Shard(rank, manifest.shards) for rank in range(shard.rank % divisor, manifest.shards, divisor)]
    parts = [Part(kind, writer) for kind in ((WEIGHTS, OPTIMIZER) if optimizer else (WEIGHTS,)) for writer in writers]
    for part in parts:
        if part.name not in manifest.files:
            why = "; it was saved without what training needs to go on" if part.kind == OPTIMIZER else ""
            raise ModelError(f"there is no {part.name}{why}")
    if optimizer and PROGRESS not in manifest.files:
        raise ModelError(f"there is no {PROGRESS}")
    return parts


@dataclass(frozen=True)
class SavedArrays:
    """The arrays of a model folder."""

    folder: Path
    manifest: Manifest
    config: Config
    features: int
    labels: int

    def layouts(self, optimizer: bool) -> dict[str, ArrayLayout]:
        """Of all arrays but those of links; without `optimizer`, of those that prediction needs."""
        every = array_layouts(self.config, self.features, self.labels)
        return {name: layout for name, layout in every.items() if (optimizer or is_parameter(name))}

    def _outdated(self) -> set[str]:
        """Arrays that mean something else since the folder's format, and are not looked at."""
        every = array_layouts(self.config, self.features, self.labels)
        return set()

    def open(self, part: Part, verify: bool) -> OpenPart:
        """Maps a file. ModelError if it is missing, damaged or not of this network; with `verify`, by its checksum."""
        path, writer = self.folder / part.name, part.writer
        if writer.size > 1 and not path.exists():
            raise ModelError(
                f"{path}: is missing; rank {writer.rank} of {writer.size} wrote it, perhaps on another machine, and it "
                f"has to be copied here"
            )
        (check_content if verify else check_size)(path, self.manifest.files[part.name])
        file = open_tensors(path)
        links: dict[str, Array] = {}
        if part.kind == WEIGHTS and has_label_prior(self.config) and prior_arrays(file.arrays):
            links = _links(path, file, self.features, writer.count(self.labels))
        expected = {a: la for a, la in self.layouts(True).items() if is_parameter(a) == (part.kind == WEIGHTS)}
        left_out = links.keys() | self._outdated()
        _check_arrays(path, {a: file.arrays[a] for a in file.arrays if a not in left_out}, expected, writer)
        return OpenPart(part, file, links)

    def read(self, shard: Shard, optimizer: bool, verify: bool) -> Mapping[str, Array]:
        """The arrays of a shard. ModelError if a file that they need is missing, damaged or not of this network."""
        try:
            parts = parts_of(self.manifest, shard, optimizer)
        except ModelError as error:
            raise ModelError(f"{self.folder}: {error}") from None
        opened = [self.open(part, verify) for part in parts]
        links = [(one.part.writer, one.links) for one in opened if one.part.kind == WEIGHTS]
        if len({bool(arrays) for _, arrays in links}) > 1:
            raise ModelError(f"{self.folder}: damaged: {SOME_LINKS}")
        return ScatteredArrays(self.layouts(optimizer), opened, shard, links_of_shard(links, shard))


SOME_LINKS = "some of its shards have links and others have none"


class ScatteredArrays(Mapping[str, Array]):
    """A shard's arrays. Where a file is the shard's own, they are mapped; else each is made anew from the files of
    other shards whenever it is asked for. Those of links are given."""

    def __init__(
        self, layouts: dict[str, ArrayLayout], parts: Sequence[OpenPart], shard: Shard, links: Mapping[str, Array]
    ) -> None:
        self._layouts, self._parts, self._shard, self._links = layouts, parts, shard, links

    def __getitem__(self, name: str) -> Array:
        if name in self._links:
            return self._links[name]
        if (mapped := self._mapped(name)) is not None:
            return mapped
        layout = self._layouts[name]
        shape = layout.shape(self._shard)
        made: Array = aligned_zeros(*shape, layout.dtype) if len(shape) == 2 else np.zeros(shape, layout.dtype)
        self.copy_into(name, made)
        return made

    def copy_into(self, name: str, into: Array) -> None:
        """Fills a network's array with that of its name, and takes hardly any memory besides; ModelError if it is
        another one."""
        layout = self._layouts.get(name)
        if layout is not None:
            like = np.broadcast_to(np.empty((), layout.dtype), layout.shape(self._shard))  # takes no memory
            checked({name: like}, name, into.dtype, into.shape)
        else:
            checked({}, name, into.dtype, into.shape)
        self._fill(name, self._layouts[name], into)

    def _fill(self, name: str, layout: ArrayLayout, into: Array) -> None:
        if (mapped := self._mapped(name)) is not None:
            copy_rows(into, mapped, self._release)
            return
        parts = self._parts_with(name)
        for one in parts[:1] if layout.axis is None else parts:
            own, theirs = common(layout, self._shard, one.part.writer)
            copy_rows(into[own], one.file.arrays[name][theirs], one.file.release)

    def _parts_with(self, name: str) -> list[OpenPart]:
        return [one for one in self._parts if name in one.file.arrays]

    def _mapped(self, name: str) -> Array | None:
        """The array in the shard's own file, if that is here."""
        parts = self._parts_with(name)
        return parts[0].file.arrays[name] if parts and parts[0].part.writer == self._shard else None

    def _release(self) -> None:
        for one in self._parts:
            one.file.release()

    def __iter__(self) -> Iterator[str]:
        return iter([*self._layouts, *self._links])

    def __len__(self) -> int:
        return len(self._layouts) + len(self._links)

    def __contains__(self, name: object) -> bool:
        return name in self._layouts or name in self._links


def common(layout: ArrayLayout, a: Shard, b: Shard) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """What of an array both shards have, in one and in the other."""
    if layout.axis is None:  # the same on all ranks
        return (), ()
    before = (slice(None),) * layout.axis
    ours, theirs = common_neurons(layout.neurons, a, b)
    return (*before, ours), (*before, theirs)


def common_neurons(neurons: int, a: Shard, b: Shard) -> tuple[slice, slice]:
    """The neurons of a layer that both shards own, by their local numbers in one and in the other. The shards must
    be such that they can have some in common."""
    divisor = math.gcd(a.size, b.size)
    step = a.size * b.size // divisor  # between two common neurons of the whole layer
    turns = (b.rank - a.rank) // divisor * pow(a.size // divisor, -1, b.size // divisor) % (b.size // divisor)
    first = a.rank + a.size * turns
    count = len(range(first, neurons, step))

    def local(shard: Shard) -> slice:
        begin, stride = (first - shard.rank) // shard.size, step // shard.size
        return slice(begin, begin + count * stride, stride)

    return local(a), local(b)


def links_of_shard(parts: Sequence[tuple[Shard, Mapping[str, Array]]], shard: Shard) -> Mapping[str, Array]:
    """The arrays of the links to a shard's labels, out of those that writers have; none if they have none."""
    if not parts[0][1] or parts[0][0] == shard:
        return parts[0][1]
    return regrouped(parts, shard)


def _links(path: Path, file: TensorFile, features: int, neurons: int) -> dict[str, Array]:
    """The arrays of the links in a shard's file; ModelError if they are damaged."""
    try:
        return LabelPrior.of_state(file.arrays, features, neurons, 1.0).state()
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _check_arrays(path: Path, arrays: dict[str, Array], expected: dict[str, ArrayLayout], writer: Shard) -> None:
    """ModelError if the arrays are not those of the network."""
    for name in arrays:
        if name not in expected:
            raise ModelError(f"{path}: array {name!r} is none of the network that config.json describes")
    for name, layout in expected.items():
        try:
            checked(arrays, name, layout.dtype, layout.shape(writer))
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
