"""Dense matrices in .npy files, and in .npz archives that numpy.savez wrote, with labels beside. Numbers are mapped
into memory where they are stored uncompressed; nothing is ever unpickled."""

from __future__ import annotations

import struct
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dslide.data.dataset import Dataset
from dslide.data.dense_rows import DenseRows
from dslide.data.files import decode_lines, line_blocks, open_file
from dslide.data.formats.labelled_text import number_names
from dslide.data.formats.npz import read_matrix
from dslide.data.formats.tsv import split_labels
from dslide.data.rows import SparseRows
from dslide.errors import DataError
from dslide.util.csr import indptr_of
from dslide.util.memory import check_memory, rss_bytes

MAGIC = b"\x93NUMPY"
ARCHIVE = b"PK\x03\x04"
LABELS = ("y", "Y")  # of an array of labels in an archive
_LABEL_FILES = (".npy", ".npz", ".txt")
_HEADER = struct.Struct("<26x2H")  # of a file in an archive: lengths of its name and of extra fields, which follow

Array = NDArray[Any]


def is_dense_archive(path: str | Path) -> bool:
    """Whether an .npz file has arrays, and is not a scipy sparse matrix."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "indptr.npy" not in archive.namelist() and "format.npy" not in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def read_dense(
    path: str | Path, y: str | Path | None, label_names: Sequence[str] | None = None, labels_known: int | None = None,
    label_separator: str | None = None,
) -> Dataset:  # fmt: skip
    """Rows of a dense matrix with their labels: from an archive that has them too, from the file `y`, or from the one
    beside that is named like X with Y in its place; else without labels. In a file of text there is `label_separator`,
    or a blank, between labels. Classes are those of `labels_known`."""
    features, labels = _arrays(path)
    x = dense_rows(path, features)
    place = path
    if y is None and labels is None:
        y = _labels_beside(Path(path))
    if y is None and labels is None:
        return Dataset(x, _no_labels(len(x), label_names), label_names, source=str(path))
    if y is not None:
        place = y
        with open_file(y) as file:
            start = file.read(len(MAGIC))
        if start == MAGIC:
            labels = read_array(y)
        elif start[:4] == ARCHIVE:
            return Dataset(x, _checked_rows(read_matrix(Path(y)), x, y), label_names, source=str(path))
    names, rows = label_names, None
    if labels is None:
        assert y is not None
        texts = [
            split_labels(line, label_separator)
            for first, block in line_blocks(y)
            for line in decode_lines(y, first, block)
        ]
    elif labels.dtype.kind == "U":
        texts = [[str(label)] for label in labels.reshape(-1)]
    else:
        rows = _checked_rows(_labels_of(labels, place), x, place)
        known = labels_known if label_names is None else len(label_names)
        if known is not None and labels.ndim == 1 and rows.columns < known:
            rows = rows.with_columns(known)
        return Dataset(x, rows, names, source=str(path))
    if len(texts) != len(x):
        raise DataError(f"{place}: has labels of {len(texts)} rows, but {path} has {len(x)} rows")
    names, number_of = number_names(Counter(label for row in texts for label in set(row)), label_names)
    ids = [sorted({number_of[label] for label in row}) for row in texts]
    indices = np.array([label for row in ids for label in row], np.int32)
    indptr = indptr_of(np.array([len(row) for row in ids], np.int64))
    found = SparseRows(indptr, indices, np.ones(len(indices), np.float32), len(names))
    unknown = 0 if label_names is None else len(names) - len(label_names)
    return Dataset(x, found, names, source=str(path), unknown_labels=unknown)


def dense_rows(path: str | Path, features: Array | None = None) -> DenseRows:
    """The rows of a file's matrix, checked."""
    try:
        rows = DenseRows(_arrays(path)[0] if features is None else features)
        if len(rows) == 0 or rows.columns == 0:
            raise DataError(f"there are no numbers in a matrix of {len(rows)} rows and {rows.columns} columns")
        rows.refuse_infinite()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return rows


def read_array(path: str | Path) -> Array:
    """The array of an .npy file, mapped."""
    with open_file(path) as file:
        size = file.seek(0, 2)
        return _mapped(path, file, 0, size)


def _arrays(path: str | Path) -> tuple[Array, Array | None]:
    """The features in a file, and the labels if it has them."""
    with open_file(path) as file:
        if file.read(len(MAGIC)) == MAGIC:
            return read_array(path), None
    try:
        with zipfile.ZipFile(path) as archive:
            infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            of_labels = [name for name in infos if name in LABELS]
            of_features = [name for name in infos if name not in LABELS]
            if len(of_features) != 1 or len(of_labels) > 1:
                raise DataError(
                    f"{path}: expected one array of features and maybe one named y, found {', '.join(infos)}"
                )
            features, *labels = (_member(path, archive, infos[name]) for name in (*of_features, *of_labels))
            return features, labels[0] if labels else None
    except (OSError, zipfile.BadZipFile, struct.error):
        raise DataError(f"{path}: a damaged .npz file, or none") from None


def _member(path: str | Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """An array of an archive: mapped, or read if it is compressed."""
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
        with open_file(path) as file:
            file.seek(info.header_offset)
            name, extra = _HEADER.unpack(file.read(_HEADER.size))
            return _mapped(path, file, info.header_offset + _HEADER.size + name + extra, info.file_size)
    check_memory(rss_bytes() + 2 * info.file_size, f"reading {path}", "an uncompressed file is mapped")
    try:
        with archive.open(info) as packed:
            array: Array = npy.read_array(packed, allow_pickle=False)
            return array
    except Exception:  # numpy and zlib raise many types for bad files
        raise DataError(f"{path}: {info.filename} is damaged, or holds Python objects") from None


def _mapped(path: str | Path, file: IO[bytes], begin: int, size: int) -> Array:
    """The array in `size` bytes of a file."""
    try:
        file.seek(begin)
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read(file)
    except Exception:  # numpy raises many types for bad headers
        raise DataError(f"{path}: not an array that numpy wrote") from None
    if dtype.hasobject:
        raise DataError(f"{path}: expected an array of numbers, not of Python objects")
    begins, count = file.tell(), int(np.prod(shape, dtype=object)) if shape else 1
    if begins + count * dtype.itemsize > begin + size:
        needed, there = count * dtype.itemsize, begin + size - begins
        raise DataError(f"{path}: is cut off: {there} of {needed} bytes of an array {shape} of {dtype} are there")
    if count == 0:
        return np.zeros(shape, dtype)
    return np.memmap(file, dtype, "r", begins, shape, "F" if by_columns and len(shape) > 1 else "C")


def _labels_beside(path: Path) -> Path | None:
    """The file of labels for one of features: X.npy has Y.npy, Y.npz or Y.txt."""
    if not path.name.startswith("X"):
        return None
    found = (path.with_name("Y" + path.name[1:]).with_suffix(suffix) for suffix in _LABEL_FILES)
    return next((file for file in found if file.exists()), None)


def _labels_of(array: Array, place: str | Path) -> SparseRows:
    """Classes by number, a row each, or a matrix of label weights."""
    if array.ndim == 1 and array.dtype.kind in "iu":
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**31 - 1:
            row = int(np.argmax((array < 0) | (array >= 2**31 - 1)))
            raise DataError(f"{place}: row {row}: a class is a whole number from 0 on, not {array[row]}")
        ids = np.ascontiguousarray(array, np.int32)
        columns = int(ids.max(initial=-1)) + 1
        return SparseRows(np.arange(len(ids) + 1), ids, np.ones(len(ids), np.float32), columns)
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        what = f"an array of {array.ndim} dimensions of {array.dtype}"
        raise DataError(f"{place}: expected a class for each row, whole numbers or texts, or a matrix, not {what}")
    try:
        return SparseRows.from_scipy(np.asarray(array))
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


def _checked_rows(y: SparseRows, x: DenseRows, place: str | Path) -> SparseRows:
    if len(y) != len(x):
        raise DataError(f"{place}: has labels of {len(y)} rows, but there are {len(x)} rows of features")
    return y


def _no_labels(rows: int, names: Sequence[str] | None) -> SparseRows:
    columns = 0 if names is None else len(names)
    return SparseRows(np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), columns)
