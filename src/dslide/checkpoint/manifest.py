"""The files of a saved model: their names, the manifest that lists them with size and checksum, writing them
atomically, and reading them without trusting their content."""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dslide.checkpoint.tensor_file import Read, stream_tensors
from dslide.errors import ModelError, raised_as
from dslide.model.sharding import MOST_SHARE, Shard
from dslide.util.arrays import Array
from dslide.util.atomic import AtomicFile
from dslide.util.json_files import read_plain_json
from dslide.util.plain import open_plain, remove_plain_folder

FORMAT = 15  # the version number of model folders; no other is read
MANIFEST = "manifest.json"
WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"  # one of each for every rank
LABEL_COUNTS = "label_counts.safetensors"
CONFIG, PROGRESS, LABELS, FEATURES = "config.json", "progress.json", "labels.json", "features.json"
VECTORIZER, TOKENS = "vectorizer.json", "tokens.json"
CARD = "README.md"  # for readers; the manifest does not list it, so that it can be edited
FIELDS = {  # of SavedModel that have a file each
    PROGRESS: "progress", LABELS: "label_names", FEATURES: "feature_names", VECTORIZER: "vectorizer", TOKENS: "tokens",
    "estimator.json": "estimator",
}  # fmt: skip
COMMON_FILES = (CONFIG, LABEL_COUNTS, *FIELDS)  # one for all ranks
MAX_SHARDS = 1 << 16
MOST_SHARES = 1 << 12  # ranks with unequal shares
LARGEST = 2**31 - 1  # number of features, labels, steps
READ_SIZE = 1 << 20  # bytes

Entry = dict[str, int]  # size in bytes and crc32 of a file

_ARRAYS = re.compile(r"(weights|optimizer)(-[0-9]{1,5}-of-[0-9]{1,5})?\.safetensors", re.ASCII)
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.partial|[0-9a-f]{32}", re.ASCII)  # of AtomicFile, of find_disks


def shard_file(name: str, rank: int, shards: int) -> str:
    """The name of a rank's file of arrays: weights-2-of-4.safetensors; with one rank, weights.safetensors."""
    if shards == 1:
        return name
    stem, suffix = name.split(".")
    return f"{stem}-{rank}-of-{shards}.{suffix}"


def is_model_file(name: str) -> bool:
    """Whether a file of this name belongs to a model folder, or is what a crash left of one."""
    if (temporary := _TEMPORARY.fullmatch(name)) is not None:
        return temporary[1] is None or is_model_file(temporary[1])
    return name in (MANIFEST, CARD, *COMMON_FILES) or _ARRAYS.fullmatch(name) is not None


def remove_model(folder: Path) -> bool:
    """Removes the files of a model, the manifest first, so that it never passes for a complete one, and the folder if
    nothing else is in it; whether it is gone. OSError if something can't be removed, or if the folder is a link."""
    return remove_plain_folder(folder, is_model_file, MANIFEST)


@dataclass(frozen=True)
class Manifest:
    """What a model folder should hold."""

    shards: int  # ranks that wrote it
    files: dict[str, Entry]
    shares: tuple[int, ...] = ()  # of their neurons; empty: equal

    @property
    def writers(self) -> list[Shard]:
        """The shards of the ranks that wrote it."""
        return [Shard(rank, self.shards, self.shares) for rank in range(self.shards)]

    def checksum(self) -> int:
        """Identifies a save: a checksum over the arrays of all shards, those on other disks included."""
        arrays = {name: entry for name, entry in self.files.items() if name not in COMMON_FILES}
        return zlib.crc32(json.dumps([self.shards, arrays], sort_keys=True).encode())

    def write(self, folder: Path) -> None:
        about = {"format": FORMAT, "dslide": version("dslide"), "shards": self.shards, "files": self.files}
        if self.shares:
            about["shares"] = list(self.shares)
        write_json(folder / MANIFEST, about)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder, each entry checked for name and type."""
        path = folder / MANIFEST
        if not folder.is_dir():
            raise ModelError(f"{folder}: there is no such model folder")
        if not os.path.lexists(path):
            raise ModelError(f"{folder}: not a complete model folder: there is no {MANIFEST}")
        content = read_json(path, dict)
        written = content.get("format")
        if type(written) is not int or written != FORMAT:
            raise ModelError(
                f"{path}: the model has format {written!r} (written by dslide {content.get('dslide')}), this version "
                f"of dslide reads format {FORMAT} only"
            )
        shards = content.get("shards")
        if type(shards) is not int or not 1 <= shards <= MAX_SHARDS:
            raise ModelError(f"{path}: damaged: expected a number of shards, 1 to {MAX_SHARDS}, not {shards!r}")
        of_shards = f" of {shards} shards" if shards > 1 else ""
        files = content.get("files")
        if not isinstance(files, dict):
            raise ModelError(f"{path}: damaged: no list of files")
        known = {*COMMON_FILES, *(shard_file(name, r, shards) for name in (WEIGHTS, OPTIMIZER) for r in range(shards))}
        for name, entry in files.items():
            if name not in known:  # also keeps paths like ../x from being followed
                raise ModelError(f"{path}: damaged: {name!r} is not a file of a model{of_shards}")
            if not isinstance(entry, dict) or not all(type(entry.get(k)) is int for k in ("size", "crc32")):
                raise ModelError(f"{path}: damaged: no size and checksum of {name}")
        return cls(shards, files, _shares(path, content.get("shares", []), shards))


def _shares(path: Path, found: Any, shards: int) -> tuple[int, ...]:
    """The shares of the ranks that wrote a folder, checked."""
    if not isinstance(found, list) or not all(type(share) is int and 1 <= share <= MOST_SHARE for share in found):
        raise ModelError(f"{path}: damaged: expected shares of 1 to {MOST_SHARE}")
    if len(found) not in (0, shards) or len(found) > MOST_SHARES:
        raise ModelError(f"{path}: damaged: expected no shares or {min(shards, MOST_SHARES)}, not {len(found)}")
    return tuple(found)


class CheckedFile(AtomicFile):
    """An atomic file of bytes; `entry` describes what was written to it."""

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self.entry = {"size": 0, "crc32": 0}

    def write(self, piece: bytes | memoryview) -> None:
        self.file.write(piece)
        self.entry["size"] += len(piece)
        self.entry["crc32"] = zlib.crc32(piece, self.entry["crc32"])


def write_json(path: Path, content: Any) -> Entry:
    """Writes a file that is on disk when this returns."""
    with (file := CheckedFile(path)):
        file.write(json.dumps(content, indent=1).encode())
    return file.entry


def write_arrays(path: Path, arrays: Mapping[str, Array], read: Read = None) -> Entry:
    """Writes a file of arrays that is on disk when this returns. `read` is as in `stream_tensors`."""
    with (file := CheckedFile(path)):
        stream_tensors(file.write, arrays, read)
    return file.entry


def write_again(path: Path, before: Path) -> None:
    """Hard-links a file that was written before; copies it where that is not possible."""
    try:
        os.link(before, path)
    except OSError:
        with AtomicFile(path) as file, open(before, "rb") as source:
            shutil.copyfileobj(source, file, READ_SIZE)


def check_file(path: Path, entry: Entry, *, content: bool) -> None:
    """ModelError if the file's size or, with `content`, its checksum is not the one in the manifest."""
    crc = 0
    with open_plain(path, ModelError) as file, raised_as(ModelError, f"{path}: can't be read", OSError):
        size = os.fstat(file.fileno()).st_size
        if size != entry["size"]:
            raise ModelError(f"{path}: damaged: it has {size} bytes, but {entry['size']} were written")
        while content and (piece := file.read(READ_SIZE)):
            crc = zlib.crc32(piece, crc)
    if content and crc != entry["crc32"]:
        raise ModelError(f"{path}: damaged: its checksum is not the one that was written")


def read_json(path: Path, kind: type) -> Any:
    """The content of a JSON file, a list or dict as `kind` says."""
    content = read_plain_json(path, ModelError)
    if not isinstance(content, kind):
        raise ModelError(f"{path}: damaged: expected a JSON {'list' if kind is list else 'object'}")
    return content


def read_number(path: Path, values: dict[str, Any], key: str, low: int = 0, high: int = LARGEST) -> int:
    """A whole number of a JSON object."""
    value = values.get(key)
    if type(value) is not int or not low <= value <= high:
        raise ModelError(f"{path}: {key}: expected a whole number, {low} to {high}, not {value!r}")
    return value


def read_names(path: Path, count: int) -> list[str]:
    """The content of a JSON file of `count` names."""
    names: list[Any] = read_json(path, list)
    if len(names) != count or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{path}: expected a list of {count} names")
    try:
        for name in names:
            name.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
        raise ModelError(f"{path}: the name {name!r} is not text that can be written") from None
    return names
