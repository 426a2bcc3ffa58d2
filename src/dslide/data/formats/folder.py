"""A dataset as a folder of raw arrays, opened by mapping them into memory.

dataset.json       sizes, checksums, format version: the manifest, written last
x_indptr.i64  x_indices.i32  x_values.f32      little-endian; the same with y_ for labels
label_names.txt  feature_names.txt  vectorizer.json      if there are any
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dslide.data.dataset import Dataset, combined_checksum, crc32
from dslide.data.dense_rows import sparse_part
from dslide.data.files import read_names, write_names
from dslide.data.layout import Layout
from dslide.data.rows import MAX_COLUMNS, SparseRows
from dslide.data.text import TextVectorizer
from dslide.errors import DataError
from dslide.util.arrays import Floats, Ids, Offsets
from dslide.util.atomic import new_folder
from dslide.util.json_files import read_plain_json
from dslide.util.plain import open_plain

MANIFEST = "dataset.json"
VERSION = 1
_KIND = "dslide dataset"
_PARTS = {"indptr": ("i64", "<i8"), "indices": ("i32", "<i4"), "values": ("f32", "<f4")}
_CHUNK = 1 << 22  # rows or bytes processed at a time


class RowsFiles:
    """Writes sparse rows to three files, piece by piece (a `Sink`). A context manager: closes the files. `begun`: the
    files are there, and `go_on` comes first."""

    def __init__(self, folder: Path, name: str, begun: bool = False) -> None:
        self._folder, self._name = folder, name
        mode = "r+b" if begun else "w+b"
        self._files = {part: open(_path(folder, name, part), mode) for part in _PARTS}  # noqa: SIM115 (see __exit__)
        self._sums = dict.fromkeys(_PARTS, 0)
        self.about: dict[str, Any] = {}  # the manifest's entry for these files, after `finish`
        self._rows = self._nnz = 0
        if not begun:
            self._write("indptr", np.zeros(1, np.int64))

    def __enter__(self) -> RowsFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # on a full disk closing fails too; the first error is the one to raise
                file.close()

    def append(self, indptr: Offsets, indices: Ids, values: Floats) -> None:
        """Adds rows; `indptr` starts at 0."""
        self._write("indptr", indptr[1:] + self._nnz)
        self._write("indices", indices)
        self._write("values", values)
        self._rows += len(indptr) - 1
        self._nnz += len(indices)

    def so_far(self) -> dict[str, Any]:
        """What is written, for `go_on`; it is on disk when this returns."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {"rows": self._rows, "nnz": self._nnz, "crc32": dict(self._sums)}

    @staticmethod
    def holds(folder: Path, name: str, so_far: dict[str, Any]) -> bool:
        """Whether files have all that was written so far."""
        return all(_path(folder, name, part).stat().st_size >= size for part, size in _sizes(so_far).items())

    def go_on(self, so_far: dict[str, Any]) -> None:
        """Goes on from there: what was written later is removed."""
        for part, size in _sizes(so_far).items():
            self._files[part].truncate(size)
            self._files[part].seek(size)
        self._rows, self._nnz, self._sums = so_far["rows"], so_far["nnz"], dict(so_far["crc32"])

    def finish(self, rows: int, columns: int, base: int = 0) -> SparseRows:
        """The first `rows` rows (all others must be empty), with `base` subtracted from every index, mapped."""
        if rows < self._rows:
            self._files["indptr"].truncate(8 * (rows + 1))
            self._rewrite("indptr", 0)
        if base:
            self._rewrite("indices", base)
        for file in self._files.values():
            file.close()
        self.about = {"columns": columns, "nnz": self._nnz, "crc32": self._sums}
        return _open_rows(self._folder, self._name, rows, self.about)

    def _write(self, part: str, array: NDArray[Any]) -> None:
        data = np.ascontiguousarray(array, dtype=_PARTS[part][1])
        self._files[part].write(data.data.cast("B") if data.size else b"")
        self._sums[part] = crc32(data, self._sums[part])

    def _rewrite(self, part: str, subtract: int) -> None:
        """Subtracts in place and computes the checksum again."""
        file, self._sums[part], dtype = self._files[part], 0, np.dtype(_PARTS[part][1])
        file.seek(0)
        while data := file.read(_CHUNK):
            array = np.frombuffer(data, dtype) - dtype.type(subtract)
            self._sums[part] = crc32(array, self._sums[part])
            file.seek(-len(data), 1)
            file.write(array.data.cast("B"))
            file.flush()


def _sizes(so_far: dict[str, Any]) -> dict[str, int]:
    """The bytes of each file of rows."""
    return {"indptr": 8 * (so_far["rows"] + 1), "indices": 4 * so_far["nnz"], "values": 4 * so_far["nnz"]}


def write_dataset(dataset: Dataset, folder: str | Path) -> None:
    """Writes a dataset to a new folder, which appears complete or not at all.

    Parameters
    ----------
    dataset : Dataset
    folder : path
        Folder to make, which must not exist.
    """
    if dataset.users is not None:
        raise DataError(f"{dataset.source}: interactions can't be written as a dataset folder, read their text instead")
    if dataset.row_weights is not None:
        raise DataError(f"{dataset.source}: weights of rows can't be written to a dataset folder")
    if dataset.dense_features:
        raise DataError(f"{dataset.source}: dense features can't be written as a dataset folder; a .npy file is mapped")
    with new_folder(folder) as partial, RowsFiles(partial, "x") as x, RowsFiles(partial, "y") as y:
        for rows, files in ((sparse_part(dataset.x), x), (dataset.y, y)):
            for begin in range(0, len(rows), _CHUNK):
                block = rows.part(begin, min(begin + _CHUNK, len(rows)))
                files.append(block.indptr, block.indices, block.values)
            files.finish(len(rows), rows.columns)
        complete_folder(partial, dataset, x, y)


def complete_folder(folder: Path, dataset: Dataset, x: RowsFiles, y: RowsFiles) -> None:
    """Writes the other files of a folder, the manifest last; `x` and `y` are finished."""
    for kind in ("label_names", "feature_names"):
        if (names := getattr(dataset, kind)) is not None:
            write_names(folder / f"{kind}.txt", names)
    if dataset.vectorizer is not None:
        text = json.dumps(dataset.vectorizer.to_dict(), ensure_ascii=False)
        (folder / "vectorizer.json").write_text(text, encoding="utf-8")
    about = {"x": x.about, "y": y.about}
    described = {name: getattr(dataset, name) for name in ("source", "base", "unknown_labels")}
    manifest = {"kind": _KIND, "version": VERSION, **described, "rows": len(dataset)}
    manifest |= {"layout": dataset.layout.to_dict(), **about, "checksum": _digest(about)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def open_dataset(folder: str | Path, verify: bool = False) -> Dataset:
    """Maps a dataset folder into memory. Sizes are always checked; `verify` checks the contents as well.

    Parameters
    ----------
    folder : path
        As `write_dataset` or `convert` made it.
    verify : bool
        Check the contents as well as the sizes, which reads them once.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        A file is missing or damaged.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    x, y = (_open_rows(folder, name, manifest["rows"], manifest[name], verify) for name in ("x", "y"))
    if _digest(manifest) != manifest["checksum"]:
        raise DataError(f"{folder / MANIFEST}: is damaged, its checksums don't fit together")
    label_names, feature_names = (_read_names(folder / f"{kind}_names.txt") for kind in ("label", "feature"))
    vectorizer = _read_vectorizer(folder / "vectorizer.json", x.columns)
    base, unknown_labels = manifest["base"], manifest["unknown_labels"]
    try:
        layout = Layout.from_dict(manifest.get("layout", {}))
    except DataError as error:
        raise DataError(f"{folder / MANIFEST}: is damaged: {error}") from None
    dataset = Dataset(x, y, label_names, feature_names, vectorizer, str(folder), base, unknown_labels, layout=layout)
    return dataset.with_checksum(manifest["checksum"])


def _path(folder: Path, name: str, part: str) -> Path:
    return folder / f"{name}_{part}.{_PARTS[part][0]}"


def _digest(about: dict[str, Any]) -> str:
    sums = {f"{name}_{part}": about[name]["crc32"][part] for name in ("x", "y") for part in _PARTS}
    return combined_checksum(about["x"]["columns"], about["y"]["columns"], sums)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    if not os.path.lexists(path):
        raise DataError(f"{folder}: not a dataset folder, it has no {MANIFEST}")
    manifest = read_plain_json(path, DataError)
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise DataError(f"{path}: does not describe a {_KIND}")
    version = manifest.get("version")
    if type(version) is not int or version < 1:
        raise DataError(f"{path}: is damaged: version {version!r}")
    if version > VERSION:
        raise DataError(f"{folder}: was written by a newer dslide (format {version}, this one reads up to {VERSION})")
    limits: dict[tuple[str, ...], int] = {("rows",): 2**60, ("base",): 1, ("unknown_labels",): MAX_COLUMNS}
    for name in ("x", "y"):
        limits |= {(name, "columns"): MAX_COLUMNS, (name, "nnz"): 2**60}
        limits |= {(name, "crc32", part): 2**32 - 1 for part in _PARTS}
    for keys, most in limits.items():
        value: Any = manifest
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if type(value) is not int or not 0 <= value <= most:
            raise DataError(f"{path}: is damaged: {': '.join(keys)}: expected a whole number, not {value!r}")
    if manifest["unknown_labels"] > manifest["y"]["columns"]:
        raise DataError(f"{path}: is damaged: more unknown labels than labels")
    if not isinstance(manifest.get("checksum"), str):
        raise DataError(f"{path}: is damaged: there is no checksum")
    return manifest


def _open_rows(folder: Path, name: str, rows: int, about: dict[str, Any], verify: bool = False) -> SparseRows:
    arrays = []
    for part, (_, dtype) in _PARTS.items():
        path = _path(folder, name, part)
        size = rows + 1 if part == "indptr" else about["nnz"]
        expected = size * np.dtype(dtype).itemsize
        with open_plain(path, DataError) as file:
            found = os.fstat(file.fileno()).st_size
            try:
                array = np.memmap(file, dtype, "r") if found and found == expected else np.zeros(0, dtype)
            except OSError as error:
                raise DataError(f"{path}: can't be read: {error.strerror}") from None
        if found != expected:
            raise DataError(f"{path}: is damaged, expected {expected} bytes but found {found}")
        if verify and crc32(array) != about["crc32"][part]:
            raise DataError(f"{path}: is damaged, its checksum differs from the one in {MANIFEST}")
        arrays.append(array)
    try:
        return SparseRows(arrays[0], arrays[1], arrays[2], about["columns"])
    except DataError as error:
        raise DataError(f"{folder}: {name} is damaged: {error}") from None


def _read_names(path: Path) -> list[str] | None:
    if not os.path.lexists(path):
        return None
    open_plain(path, DataError).close()  # refuses links
    return read_names(path)


def _read_vectorizer(path: Path, features: int) -> TextVectorizer | None:
    if not os.path.lexists(path):
        return None
    content = read_plain_json(path, DataError)
    try:
        vectorizer = TextVectorizer.from_dict(content)
    except DataError as error:
        raise DataError(f"{path}: is damaged: {error}") from None
    if len(vectorizer.words) != features:
        raise DataError(f"{path}: is damaged: {len(vectorizer.words)} words for {features} features")
    return vectorizer
