"""Pairs of scipy sparse matrices in .npz files as a dataset folder, a block of rows at a time."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse as sp

from dslide.data.dataset import Dataset
from dslide.data.files import open_file, source_of
from dslide.data.formats.folder import RowsFiles
from dslide.data.formats.npz import NOT_NPZ, npz_pair, read_matrix
from dslide.data.rows import SparseRows
from dslide.errors import DataError
from dslide.util.memory import check_memory, rss_bytes
from dslide.util.units import format_bytes

BLOCK_ROWS = 1 << 14
BLOCK_BYTES = 1 << 27  # what a block takes, unless its rows are very long


def convert_npz(
    paths: Sequence[str | Path], y_path: str | Path | None, x: RowsFiles, y: RowsFiles, say: Callable[[str], None]
) -> Dataset:
    """Writes the rows of all pairs to `x` and `y`. Matrices that are not stored by rows are read whole."""
    say(f"memory: at most about {format_bytes(rss_bytes() + BLOCK_BYTES)}; matrices that are not CSR are read whole")
    source = source_of(paths)
    shapes: list[tuple[int, int]] = []  # rows so far and columns, of features and of labels
    for sink, which in ((x, 0), (y, 1)):
        rows = columns = 0
        for path in paths:
            matrix = npz_pair(path, y_path)[which]
            begin = rows
            for block in read_blocks(matrix):
                if rows and block.columns != columns:
                    raise DataError(f"{matrix}: has {block.columns} columns, but {columns} are expected")
                columns = block.columns
                if which == 1:
                    block = _labels_only(block, matrix, rows - begin)
                sink.append(block.indptr, block.indices, block.values)
                rows += len(block)
        shapes.append((rows, columns))
    if shapes[0][0] != shapes[1][0]:
        raise DataError(f"{source}: there are {shapes[0][0]} rows of features but {shapes[1][0]} rows of labels")
    return Dataset(x.finish(*shapes[0]), y.finish(*shapes[1]), source=source)


def read_blocks(path: Path) -> Iterator[SparseRows]:
    """The rows of a matrix, in blocks; at least one, which may be empty."""
    with open_file(path) as file:
        try:
            with zipfile.ZipFile(file) as parts:
                kind, shape = (_small(parts, name) for name in ("format", "shape"))
                if kind.item() == b"csr" and shape.shape == (2,) and shape.dtype.kind in "iu":
                    yield from _csr_blocks(path, parts, int(shape[0]), int(shape[1]))
                    return
        except DataError:
            raise
        except Exception:  # numpy, zipfile and scipy raise many types for bad files
            raise DataError(f"{path}: {NOT_NPZ}") from None
    yield read_matrix(path)


def _csr_blocks(path: Path, parts: zipfile.ZipFile, rows: int, columns: int) -> Iterator[SparseRows]:
    with parts.open("indptr.npy") as ends, parts.open("indices.npy") as indices, parts.open("data.npy") as values:
        streams = [_Stream(file) for file in (ends, indices, values)]
        if [streams[0].length, streams[1].length] != [rows + 1, streams[2].length]:
            raise ValueError
        last = streams[0].read(1)
        if last[0] != 0:
            raise ValueError
        for begin in range(0, max(rows, 1), BLOCK_ROWS):
            indptr = np.concatenate([last, streams[0].read(min(BLOCK_ROWS, rows - begin))])
            last = indptr[-1:]
            count = int(last[0]) - int(indptr[0])
            if count < 0 or int(last[0]) > streams[1].length:
                raise ValueError
            needed = 3 * count * sum(stream.dtype.itemsize for stream in streams[1:])
            if needed > BLOCK_BYTES:
                check_memory(rss_bytes() + needed, f"{path}: {len(indptr) - 1} of its rows", "they are very long")
            block = sp.csr_matrix(
                (streams[2].read(count), streams[1].read(count), indptr - indptr[0]), shape=(len(indptr) - 1, columns)
            )
            try:
                yield SparseRows.from_scipy(block)
            except DataError as error:
                raise DataError(f"{path}: {error}{f', counted from row {begin}' * (begin > 0)}") from None
        if int(last[0]) != streams[1].length:
            raise ValueError


class _Stream:
    """A one-dimensional array in a .npy file, read from its beginning on; ValueError if there is none."""

    def __init__(self, file: IO[bytes]) -> None:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, self.dtype = read(file)
        if len(shape) != 1 or self.dtype.kind not in "biuf":
            raise ValueError
        self._file, self.length = file, int(shape[0])

    def read(self, count: int) -> np.ndarray[Any, Any]:
        """The next `count` numbers."""
        data = self._file.read(count * self.dtype.itemsize)
        return np.frombuffer(data, self.dtype, count)


def _small(parts: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    """An array of a few numbers, or a text."""
    info = parts.getinfo(f"{name}.npy")
    if info.file_size > 1 << 16:
        raise ValueError
    with parts.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _labels_only(y: SparseRows, path: Path, before: int) -> SparseRows:
    """`y` without weights of 0; negative ones are refused. There are `before` rows of the matrix before it."""
    if y.nnz and (lowest := float(y.values.min())) <= 0:
        if lowest < 0:
            at = int(np.argmax(y.values < 0))
            place = f"{path}: row {before + y.row_of(at)}, label {y.indices[at]}"
            raise DataError(f"{place}: a label's weight can't be negative, found {y.values[at]:g}")
        return y.where(y.values != 0)
    return y
