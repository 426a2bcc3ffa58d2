"""Dense matrices in files: mapped, with their labels, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

from dslide.data import Dataset, DenseRows, MixedRows, SparseRows, detect_format, load, write_dataset
from dslide.errors import ConfigError, DataError

X = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
CLASSES = np.array([2, 0, 1, 2, 2, 0])


def write(folder: Path, name: str, array: Any) -> Path:
    path = folder / name
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        sp.save_npz(path, sp.csr_matrix(array))
    else:
        path.write_text(array)
    return path


def labels_of(data: Dataset) -> list[list[str]]:
    names = data.label_names or list(map(str, range(data.labels)))
    return [[names[label] for label in data.y.part(row, row + 1).indices] for row in range(len(data))]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_file_is_mapped_and_not_copied(dtype: str, tmp_path: Path) -> None:
    path = write(tmp_path, "X.npy", X.astype(dtype))
    write(tmp_path, "Y.npy", CLASSES)
    assert detect_format(path) == "npy"
    data = load(path)
    assert isinstance(data.x, DenseRows)
    assert isinstance(data.x.values, np.memmap)
    assert (data.x.memory_bytes, data.dense_features, data.features) == (0, 5, 5)
    assert_array_equal(data.x.matrix()[:, :5], X.astype(dtype).astype(np.float32))
    assert labels_of(data) == [["2"], ["0"], ["1"], ["2"], ["2"], ["0"]]
    assert data.data_bytes == data.y.memory_bytes
    assert data.copied_bytes < 200  # labels, and where no sparse features are


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("Y.npy", np.array([["a"], ["b"]])[[0, 1, 0, 1, 1, 0], 0]),
        ("other.txt", "a\nb\na\nb\nb\na\n"),
        ("Y.npy", np.array([[1, 0], [0, 1], [1, 0], [0, 1], [0, 1], [1, 0]], np.float32)),
        ("Y.npy", np.array([[1, 0], [0, 1], [1, 0], [0, 1], [0, 1], [1, 0]], np.float16)),
        ("Y.npz", np.array([[1, 0], [0, 1], [1, 0], [0, 1], [0, 1], [1, 0]], np.float32)),
    ],
    ids=["texts", "lines", "matrix", "float16", "sparse"],
)
def test_labels_come_from_files_of_any_kind(name: str, labels: Any, tmp_path: Path) -> None:
    path, y = write(tmp_path, "X.npy", X), write(tmp_path, name, labels)
    data = load(path, y=None if name.startswith("Y") else y)
    found = [label for row in labels_of(data) for label in row]
    first = "a" if data.label_names else "0"
    assert [label == first for label in found] == [True, False, True, False, False, True]


def test_lines_have_several_labels_or_none_and_known_names_come_first(tmp_path: Path) -> None:
    path, y = write(tmp_path, "X.npy", X), write(tmp_path, "labels.txt", "b a\n\nc\nb b\nnew a\na\n")
    data = load(path, y=y, label_names=["c", "b", "a"])
    assert labels_of(data) == [["b", "a"], [], ["c"], ["b"], ["a", "new"], ["a"]]
    assert (list(data.label_names or ()), data.unknown_labels) == (["c", "b", "a", "new"], 1)


def test_an_archive_has_labels_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", features=X.astype(np.float16), y=CLASSES)
    np.savez_compressed(tmp_path / "packed.npz", X=X, y=CLASSES)
    for name, mapped in (("plain.npz", True), ("packed.npz", False)):
        assert detect_format(tmp_path / name) == "npy"
        data = load(tmp_path / name)
        assert isinstance(data.x, DenseRows)
        assert data.x.is_mapped == mapped
        np.testing.assert_allclose(data.x.matrix()[:, :5], X, atol=2e-3)
        assert_array_equal(data.y.indices, CLASSES)
    sp.save_npz(tmp_path / "X.npz", sp.csr_matrix(X))
    assert detect_format(tmp_path / "X.npz") == "npz"


def test_dense_features_are_beside_others(tmp_path: Path) -> None:
    dense = write(tmp_path, "dense.npy", X)
    text = write(tmp_path, "text.tsv", "".join(f"l{label}\tword{label} and\n" for label in CLASSES))
    data = load(text, embeddings=dense)
    assert isinstance(data.x, MixedRows)
    words = len(data.vectorizer.words) if data.vectorizer else 0
    assert (data.features, data.dense_features) == (words + 5, 5)
    assert list(data.feature_names or ())[words:] == [f"dense {i}" for i in range(5)]
    part = data.take(np.array([4, 1]))
    assert isinstance(part.x, MixedRows)
    assert_array_equal(part.x.dense.matrix()[:, :5], X[[4, 1]])
    assert data.values_per_row[0] <= 2  # words
    with pytest.raises(DataError, match=r"text.tsv: dense features can't be written as a dataset folder"):
        write_dataset(data, tmp_path / "folder")


BAD: list[tuple[Any, Any, str]] = [
    (X[0], CLASSES, "X.npy: expected a matrix of two dimensions, not an array of 1"),
    (X[:0], CLASSES[:0], "X.npy: there are no numbers in a matrix of 0 rows and 5 columns"),
    (X[:, :0], CLASSES, "X.npy: there are no numbers in a matrix of 6 rows and 0 columns"),
    (np.asfortranarray(X), CLASSES, "X.npy: expected a matrix stored row by row .* not by columns"),
    (X.astype(int), CLASSES, "X.npy: expected numbers of float16, float32 or float64, not of int64"),
    (X.astype(">f4"), CLASSES, "X.npy: expected numbers of float16, float32 or float64, not of >f4"),
    (X.astype(object), CLASSES, "X.npy: expected an array of numbers, not of Python objects"),
    (np.where(X[3, 2] == X, np.nan, X), CLASSES, "X.npy: row 3, column 2: expected a finite 32-bit number, found nan"),
    (np.where(X[3, 2] == X, 1e300, X.astype(float)), CLASSES, "row 3, column 2: expected a finite 32-bit .* found inf"),
    (X, CLASSES[:5], "Y.npy: has labels of 5 rows, but there are 6 rows of features"),
    (X, CLASSES - 1, "Y.npy: row 1: a class is a whole number from 0 on, not -1"),
    (X, CLASSES + 2**31, "Y.npy: row 0: a class is a whole number from 0 on, not 2147483650"),
    (X, CLASSES / 2, "Y.npy: expected a class for each row, .* not an array of 1 dimensions of float64"),
    (X, np.full((6, 2), np.nan), "Y.npy: row 0, column 0: expected a finite"),
    (X, -np.ones((6, 2)), "row 0, label 0: a label's weight can't be negative"),
    (X, np.zeros((6, 2, 2)), "Y.npy: expected a class for each row, .* not an array of 3 dimensions"),
    (X, CLASSES.astype(object), "Y.npy: expected an array of numbers, not of Python objects"),
]


@pytest.mark.parametrize(("x", "y", "message"), BAD, ids=[message[:60] for _, _, message in BAD])
def test_bad_arrays_are_refused(x: Any, y: Any, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", x, allow_pickle=True)
    np.save(tmp_path / "Y.npy", y, allow_pickle=True)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "X.npy")


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "X.npy", X)
    content = path.read_bytes()
    for cut, message in (
        (len(content) - 4, "is cut off: 116 of 120 bytes"), (40, "not an array that numpy wrote"),
    ):  # fmt: skip
        (tmp_path / "cut.npy").write_bytes(content[:cut])
        with pytest.raises(DataError, match=f"cut.npy: {message}"):
            load(tmp_path / "cut.npy")
    np.savez(tmp_path / "two.npz", a=X, b=X)
    with pytest.raises(DataError, match=r"two.npz: expected one array of features.* found a, b"):
        load(tmp_path / "two.npz")
    packed = tmp_path / "packed.npz"
    np.savez_compressed(packed, X=X, y=CLASSES)
    damaged = bytearray(packed.read_bytes())
    damaged[60:80] = bytes(20)
    packed.write_bytes(damaged)
    with pytest.raises(DataError, match=r"packed.npz: "):
        load(packed)
    short = write(tmp_path, "short.txt", "a\nb\n")
    with pytest.raises(DataError, match=r"short.txt: has labels of 2 rows, but .*X.npy has 6 rows"):
        load(path, y=short)


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "X.npy", X)
    text = write(tmp_path, "text.tsv", "a\tone two\n" * 2)
    with pytest.raises(DataError, match=r"X.npy: has 6 rows, but .*text.tsv has 2"):
        load(text, embeddings=path)
    with pytest.raises(ConfigError, match="embeddings: are beside rows of sparse features or texts, not beside npy"):
        load(path, embeddings=path)
    with pytest.raises(ConfigError, match="y: tsv data has labels and features together"):
        load(text, y=path)


def test_rows_of_other_kinds_are_not_joined() -> None:
    y = SparseRows.from_scipy(sp.csr_matrix(np.eye(6, dtype=np.float32)))
    dense, sparse = Dataset(DenseRows(X), y), Dataset(SparseRows.from_scipy(sp.csr_matrix(X)), y)
    with pytest.raises(DataError, match="rows of different kinds"):
        dense.and_rows(sparse)
    both = Dataset(MixedRows(sparse.x, dense.x), y)  # type: ignore[arg-type]
    assert len(both.and_rows(both)) == 12
    for bad in ([6], [-1]):
        with pytest.raises(IndexError, match="there is no row"):
            dense.x.take(bad)
    assert_array_equal(DenseRows.concatenate([DenseRows(X[:2]), DenseRows(X[2:])]).matrix()[:, :5], X)
