"""Pairs of scipy sparse matrices in .npz files, as PECOS has them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import scipy.sparse as sp

from dslide.data.dataset import Dataset
from dslide.data.files import open_file
from dslide.data.rows import SparseRows
from dslide.errors import DataError, MemoryNeeded
from dslide.util.memory import check_memory, rss_bytes

_PAIRS = (("X.npz", "Y.npz"), ("X.trn.npz", "Y.trn.npz"))


def find_npz_pair(path: str | Path, y: str | Path | None) -> tuple[Path, Path] | None:
    """The files of features and labels for a path, or None: X.npz and Y.npz in a folder, else X.trn.npz and Y.trn.npz;
    for a file X.<any>.npz also Y.<any>.npz beside it. `y` replaces the latter."""
    path = Path(path)
    if path.is_dir():
        pairs = [(path / a, path / b) for a, b in _PAIRS if (path / a).exists()]
        return (pairs[0][0], Path(y) if y is not None else pairs[0][1]) if pairs else None
    if y is None and path.name.startswith("X"):
        y = path.with_name("Y" + path.name[1:])
    return None if y is None else (path, Path(y))


def read_npz_pair(path: str | Path, y: str | Path | None = None) -> Dataset:
    """A dataset from two .npz files of scipy.sparse.save_npz; nothing in them is ever unpickled."""
    pair = find_npz_pair(path, y)
    if pair is None:
        if Path(path).is_dir():
            raise DataError(f"{path}: the folder has neither X.npz nor X.trn.npz")
        open_file(path).close()  # a missing file is reported first
        raise DataError(f"{path}: the labels' file is not known, give it as y")
    return Dataset(read_matrix(pair[0]), read_matrix(pair[1]), source=str(path))


def read_matrix(path: Path) -> SparseRows:
    """The matrix of one file."""
    with open_file(path) as file:
        try:
            with zipfile.ZipFile(file) as parts:  # no more is read than the sizes declared there
                unpacked = sum(part.file_size for part in parts.infolist())
            file.seek(0)
            check_memory(rss_bytes() + 2 * unpacked, f"reading {path}", "it has to fit into memory")
            matrix: Any = sp.load_npz(file)
        except MemoryNeeded:
            raise
        except Exception:  # numpy, zipfile and scipy raise many types for bad files
            raise DataError(f"{path}: not a sparse matrix written by scipy.sparse.save_npz") from None
    # a matrix that is not stored by rows may declare any number of them
    check_memory(rss_bytes() + 16 * matrix.shape[0], f"{path}: a matrix of {matrix.shape[0]} rows", "it has to fit")
    try:
        return SparseRows.from_scipy(matrix)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
