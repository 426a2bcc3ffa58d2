"""A dataset as a folder of raw arrays, opened by mapping them into memory.

dataset.json       sizes, checksums, format version: the manifest, written last
x_indptr.i64  x_indices.i32  x_values.f32      little-endian; the same with y_ for labels
label_names.txt  feature_names.txt  vectorizer.json      if there are any
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dslide.data.dataset import Dataset, combined_checksum, crc32
from dslide.data.files import read_names, write_names
from dslide.data.rows import MAX_COLUMNS, SparseRows
from dslide.data.text import TextVectorizer
from dslide.errors import DataError
from dslide.util.atomic import new_folder
from dslide.util.json_files import open_plain, read_plain_json

MANIFEST = "dataset.json"
VERSION = 1
_KIND = "dslide dataset"
_PARTS = (("indptr", "i64", "<i8"), ("indices", "i32", "<i4"), ("values", "f32", "<f4"))
_CHUNK = 1 << 22  # numbers processed at a time


class RowsFiles:
    """Writes sparse rows to three files, piece by piece (a `Sink`). A context manager: closes the files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files = {
            part: open(folder / f"{name}_{part}.{suffix}", "w+b")  # noqa: SIM115 (see __exit__)
            for part, suffix, _ in _PARTS
        }
        self._sums = {part: 0 for part, _, _ in _PARTS}
        self._rows = self._nnz = 0
        self._write("indptr", np.zeros(1, np.int64))

    def __enter__(self) -> RowsFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            with contextlib.suppress(
                OSError
            ):  # on a full disk closing fails as well; the first error is the one to raise
                file.close()

    def append(self, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float32]) -> None:
        """Adds rows; `indptr` starts at 0."""
        self._write("indptr", indptr[1:] + self._nnz)
        self._write("indices", indices)
        self._write("values", values)
        self._rows += len(indptr) - 1
        self._nnz += len(indices)

    def finish(self, rows: int, columns: int, base: int = 0) -> dict[str, Any]:
        """Keeps the first `rows` rows (all others must be empty) and subtracts `base` from every index. Returns the
        manifest's entry for these files."""
        if rows < self._rows:
            self._files["indptr"].truncate(8 * (rows + 1))
            self._rewrite("indptr", "<i8", 0)
        if base:
            self._rewrite("indices", "<i4", base)
        for file in self._files.values():
            file.close()
        return {"columns": columns, "nnz": self._nnz, "crc32": self._sums}

    def _write(self, part: str, array: NDArray[Any]) -> None:
        dtype = next(dtype for name, _, dtype in _PARTS if name == part)
        data = np.ascontiguousarray(array, dtype=dtype)
        self._files[part].write(data.data.cast("B") if data.size else b"")
        self._sums[part] = crc32(data, self._sums[part])

    def _rewrite(self, part: str, dtype: str, subtract: int) -> None:
        """Subtracts in place and computes the checksum again."""
        file, self._sums[part] = self._files[part], 0
        file.seek(0)
        while data := file.read(_CHUNK):
            array = np.frombuffer(data, dtype) - np.dtype(dtype).type(subtract)
            self._sums[part] = crc32(array, self._sums[part])
            file.seek(-len(data), 1)
            file.write(array.data.cast("B"))
            file.flush()


def write_dataset(dataset: Dataset, folder: str | Path) -> None:
    """Writes a dataset to a new folder, which appears complete or not at all."""
    if dataset.users is not None:
        raise DataError(f"{dataset.source}: interactions can't be written as a dataset folder, read their text instead")
    with new_folder(folder) as partial:
        about = {}
        for name, rows in (("x", dataset.x), ("y", dataset.y)):
            with RowsFiles(partial, name) as files:
                for begin, end in _row_blocks(rows):
                    block = rows.part(begin, end)
                    files.append(block.indptr, block.indices, block.values)
                about[name] = files.finish(len(rows), rows.columns)
        complete_folder(
            partial,
            len(dataset),
            about,
            source=dataset.source,
            base=dataset.base,
            unknown_labels=dataset.unknown_labels,
            label_names=dataset.label_names,
            feature_names=dataset.feature_names,
            vectorizer=dataset.vectorizer,
        )


def complete_folder(
    folder: Path,
    rows: int,
    about: dict[str, Any],
    *,
    source: str,
    base: int,
    unknown_labels: int = 0,
    label_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    vectorizer: TextVectorizer | None = None,
) -> None:
    """Writes the other files of a folder (`about`: from `RowsFiles.finish`), the manifest last."""
    for name, names in (("label_names.txt", label_names), ("feature_names.txt", feature_names)):
        if names is not None:
            write_names(folder / name, names)
    if vectorizer is not None:
        text = json.dumps(vectorizer.to_dict(), ensure_ascii=False)
        (folder / "vectorizer.json").write_text(text, encoding="utf-8")
    manifest = {
        "kind": _KIND,
        "version": VERSION,
        "source": source,
        "base": base,
        "unknown_labels": unknown_labels,
        "rows": rows,
        **about,
        "checksum": _digest(about),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def open_dataset(folder: str | Path, verify: bool = False) -> Dataset:
    """Maps a dataset folder into memory. Sizes are always checked; `verify` checks the contents as well."""
    folder = Path(folder)
    manifest = _read_manifest(folder)
    x, y = (_open_rows(folder, name, manifest["rows"], manifest[name], verify) for name in ("x", "y"))
    if _digest(manifest) != manifest["checksum"]:
        raise DataError(f"{folder / MANIFEST}: is damaged, its checksums don't fit together")
    label_names, feature_names = (_read_names(folder / name) for name in ("label_names.txt", "feature_names.txt"))
    dataset = Dataset(
        x,
        y,
        label_names=label_names,
        feature_names=feature_names,
        vectorizer=_read_vectorizer(folder / "vectorizer.json", x.columns),
        source=str(folder),
        base=manifest["base"],
        unknown_labels=manifest["unknown_labels"],
    )
    return dataset.with_checksum(manifest["checksum"])


def _row_blocks(rows: SparseRows) -> Iterable[tuple[int, int]]:
    """Ranges of rows with at most `_CHUNK` values each, or of a single row with more."""
    begin = 0
    while begin < len(rows):
        limit = int(rows.indptr[begin]) + _CHUNK
        end = max(begin + 1, int(np.searchsorted(rows.indptr, limit, side="right")) - 1)
        end = min(end, begin + _CHUNK, len(rows))
        yield begin, end
        begin = end


def _digest(about: dict[str, Any]) -> str:
    sums = {f"{name}_{part}": about[name]["crc32"][part] for name in ("x", "y") for part, _, _ in _PARTS}
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
    _check_numbers(path, manifest)
    return manifest


def _check_numbers(path: Path, manifest: dict[str, Any]) -> None:
    """Raises DataError for a number that is missing or out of range."""
    places: dict[str, tuple[Any, dict[str, int]]]
    places = {"": (manifest, {"rows": 2**60, "base": 1, "unknown_labels": MAX_COLUMNS})}
    for name in ("x", "y"):
        about = manifest.get(name)
        sums = about.get("crc32") if isinstance(about, dict) else None
        places[f"{name}: "] = about, {"columns": MAX_COLUMNS, "nnz": 2**60}
        places[f"{name}: crc32: "] = sums, {part: 2**32 - 1 for part, _, _ in _PARTS}
    for where, (values, limits) in places.items():
        for key, most in limits.items():
            value = values.get(key) if isinstance(values, dict) else None
            if type(value) is not int or not 0 <= value <= most:
                raise DataError(f"{path}: is damaged: {where}{key}: expected a whole number, not {value!r}")
    if manifest["unknown_labels"] > manifest["y"]["columns"]:
        raise DataError(f"{path}: is damaged: more unknown labels than labels")
    if not isinstance(manifest.get("checksum"), str):
        raise DataError(f"{path}: is damaged: there is no checksum")


def _open_rows(folder: Path, name: str, rows: int, about: dict[str, Any], verify: bool) -> SparseRows:
    arrays = []
    for part, suffix, dtype in _PARTS:
        path = folder / f"{name}_{part}.{suffix}"
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
        if verify and _chunked_crc(array) != about["crc32"][part]:
            raise DataError(f"{path}: is damaged, its checksum differs from the one in {MANIFEST}")
        arrays.append(array)
    try:
        return SparseRows(arrays[0], arrays[1], arrays[2], about["columns"])
    except DataError as error:
        raise DataError(f"{folder}: {name} is damaged: {error}") from None


def _chunked_crc(array: NDArray[Any]) -> int:
    total = 0
    for begin in range(0, len(array), _CHUNK):
        total = crc32(array[begin : begin + _CHUNK], total)
    return total


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
