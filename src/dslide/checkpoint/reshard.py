"""Reads a shard of a saved model, whatever number of ranks wrote it.

If as many ranks with the same shares wrote the model, the shard's arrays are its own files, memory-mapped. Otherwise
its neurons lie in the files of other shards (sharding.py says in which). Each array is then assembled when it is read,
straight from the mapped files into its place, so that memory holds the result and little else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dslide.checkpoint.manifest import OPTIMIZER, PROGRESS, WEIGHTS, Manifest, check_file, shard_file
from dslide.checkpoint.tensor_file import TensorFile, copy_rows, open_tensors
from dslide.checkpoint.verified import is_verified, remember
from dslide.config import Config
from dslide.errors import ModelError, raised_as
from dslide.model.label_prior import LabelPrior, has_label_prior, prior_arrays, regrouped
from dslide.model.sharding import Shard
from dslide.model.state_layout import ArrayLayout, array_layouts, is_parameter, must_be_finite
from dslide.model.storage import ArraySource, checked, widened
from dslide.util.arrays import Array, aligned_zeros

FINITE_BLOCK = 1 << 20  # numbers checked at a time

Layouts = dict[str, ArrayLayout]
Opened = Mapping["ShardFile", TensorFile]


class ShardFile(NamedTuple):
    """One file of a model's arrays."""

    kind: str  # WEIGHTS or OPTIMIZER
    writer: Shard

    @property
    def name(self) -> str:
        return shard_file(self.kind, self.writer.rank, self.writer.size)


def shard_files(manifest: Manifest, shard: Shard, optimizer: bool) -> list[ShardFile]:
    """The files that hold the arrays of a shard; ModelError if the model was saved without some of them."""
    writers = [writer for writer in manifest.writers if shard.overlaps(writer)]
    kinds = (WEIGHTS, OPTIMIZER) if optimizer else (WEIGHTS,)
    needed = [ShardFile(kind, writer) for kind in kinds for writer in writers]
    for source in needed:
        if source.name not in manifest.files:
            why = "; it was saved without the state that resuming needs" if source.kind == OPTIMIZER else ""
            raise ModelError(f"there is no {source.name}{why}")
    if optimizer and PROGRESS not in manifest.files:
        raise ModelError(f"there is no {PROGRESS}")
    return needed


@dataclass(frozen=True)
class SavedArrays:
    """The arrays of a model folder."""

    folder: Path
    manifest: Manifest
    config: Config
    features: int
    labels: int

    def layouts(self, optimizer: bool) -> Layouts:
        """The layouts of all arrays but the label prior's; without `optimizer`, of those that prediction needs."""
        return {name: layout for name, layout in self._every_layout.items() if optimizer or is_parameter(name)}

    @cached_property  # the same for all files of the folder
    def _every_layout(self) -> Layouts:
        return array_layouts(self.config, self.features, self.labels)

    def open(self, source: ShardFile, verify: bool) -> TensorFile:
        """Maps a file. ModelError if it is missing, damaged or not of this network. `verify` checks its checksum
        and that weights are finite, unless that was done before and it has not changed since."""
        path, writer = self.folder / source.name, source.writer
        if writer.size > 1 and not path.exists():
            raise ModelError(
                f"{path}: is missing; rank {writer.rank} of {writer.size} wrote it, perhaps on another machine, and it "
                f"has to be copied here"
            )
        entry = self.manifest.files[source.name]
        verify = verify and not is_verified(path, entry)
        check_file(path, entry, content=verify)
        file = open_tensors(path)
        prior: dict[str, Array] = {}
        expected = {a: la for a, la in self.layouts(True).items() if is_parameter(a) == (source.kind == WEIGHTS)}
        with raised_as(ModelError, path, ModelError):
            if source.kind == WEIGHTS and has_label_prior(self.config) and prior_arrays(file.arrays):
                prior = LabelPrior.of_state(file.arrays, self.features, writer.count(self.labels), self.config).state()
            if unexpected := [name for name in file.arrays if name not in prior and name not in expected]:
                raise ModelError(f"unexpected array {unexpected[0]!r}: the network that config.json describes has none")
            for name, layout in expected.items():
                checked(file.arrays, name, layout.dtype, layout.shape(writer))
            if verify:
                _check_finite(file)
                remember(path, entry)
        return file

    def read(self, shard: Shard, optimizer: bool, verify: bool) -> ShardArrays:
        """The arrays of a shard. ModelError if a file that they need is missing, damaged or not of this network."""
        with raised_as(ModelError, self.folder, ModelError):
            needed = shard_files(self.manifest, shard, optimizer)
        opened = {source: self.open(source, verify) for source in needed}
        priors = [(source.writer, prior_arrays(opened[source].arrays)) for source in needed if source.kind == WEIGHTS]
        return ShardArrays(self.layouts(optimizer), opened, shard, self.prior(priors, shard))

    def prior(self, priors: Sequence[tuple[Shard, Mapping[str, Array]]], shard: Shard) -> Mapping[str, Array]:
        """The arrays of the label prior for a shard's labels, out of those of the writers; none if they have none."""
        if len({bool(arrays) for _, arrays in priors}) > 1:
            raise ModelError(f"{self.folder}: damaged: some of its shards have a label prior and others have none")
        if not priors[0][1] or priors[0][0] == shard:
            return priors[0][1]
        return regrouped(priors, shard)


def _check_finite(file: TensorFile) -> None:
    """ModelError if weights are not finite, with which nothing could be predicted."""
    for name, array in file.arrays.items():
        if must_be_finite(name):
            rows = max(1, FINITE_BLOCK // max(1, array[:1].size))
            for begin in range(0, len(array), rows):
                if not np.isfinite(widened(array[begin : begin + rows])).all():
                    raise ModelError(f"array {name} has numbers that are not finite")
                file.release()


class ShardArrays(ArraySource):
    """The arrays of a shard. If the shard's own file is open, they are mapped; else each is assembled from the files of
    other shards whenever it is read. `in_memory` holds further arrays as they are: the label prior's."""

    def __init__(self, layouts: Layouts, files: Opened, shard: Shard, in_memory: Mapping[str, Array]) -> None:
        self._layouts, self._files, self._shard, self._in_memory = layouts, files, shard, dict(in_memory)

    def __getitem__(self, name: str) -> Array:
        if name in self._in_memory:
            return self._in_memory[name]
        if (file := self._own_file(name)) is not None:
            return file.arrays[name]
        made = self._empty(self._layouts[name])
        self._fill(name, made)
        return made

    def copy_into(self, name: str, into: Array) -> None:
        self._check_fit(name, into)
        if name in self._in_memory:
            into[...] = self._in_memory[name]
        else:
            self._fill(name, into)

    def _check_fit(self, name: str, into: Array) -> None:
        """ModelError if the array of this name has another type or shape."""
        layout = self._layouts.get(name)
        known = self._in_memory if layout is None else {name: placeholder(layout, self._shard)}
        checked(known, name, into.dtype, into.shape)

    def _empty(self, layout: ArrayLayout) -> Array:
        """A new array for a shard's part."""
        shape = layout.shape(self._shard)
        return aligned_zeros(*shape, layout.dtype) if len(shape) == 2 else np.zeros(shape, layout.dtype)

    def _fill(self, name: str, into: Array) -> None:
        """Copies what the open files have of an array."""
        if (file := self._own_file(name)) is not None:
            copy_rows(into, file.arrays[name], file.release)
            return
        layout = self._layouts[name]
        files = [(source.writer, file) for source, file in self._files.items() if name in file.arrays]
        for writer, file in files[:1] if layout.axis is None else files:
            for own, theirs in common(layout, self._shard, writer):
                copy_rows(into[own], file.arrays[name][theirs], file.release)

    def _own_file(self, name: str) -> TensorFile | None:
        """The shard's own file with an array, if that is open."""
        return self._files.get(ShardFile(WEIGHTS if is_parameter(name) else OPTIMIZER, self._shard))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._layouts, *self._in_memory]))

    def __len__(self) -> int:
        return len(self._layouts.keys() | self._in_memory.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._layouts or name in self._in_memory


def placeholder(layout: ArrayLayout, shard: Shard) -> Array:
    """An array of the type and shape of a shard's part that takes no memory."""
    return np.broadcast_to(np.empty((), layout.dtype), layout.shape(shard))


def common(layout: ArrayLayout, a: Shard, b: Shard) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """The parts of an array that two shards have in common, each as indices into the array of one and of the other."""
    if layout.axis is None:  # the same on all ranks
        return [((), ())]
    before = (slice(None),) * layout.axis
    return [
        ((*before, a.local_slice(*some, layout.neurons)), (*before, b.local_slice(*some, layout.neurons)))
        for some in a.common(b)
    ]
