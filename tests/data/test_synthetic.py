"""Synthetic datasets: reproducible, of the given shape, and learnable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.preprocessing import normalize

from dslide.data import load, read_names, synthesize
from dslide.errors import ConfigError, DataError

FILES = ["features.txt", "labels.txt", "test.txt", "train.txt"]


def test_a_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize(tmp_path / name, 300, 500, 100, 50, seed)
    a, b, c = ([(tmp_path / name / file).read_bytes() for file in FILES] for name in "abc")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == FILES
    assert a == b
    assert a[2:] != c[2:]
    assert a[2] != a[3][: len(a[2])]


def test_shape_and_names(tmp_path: Path) -> None:
    synthesize(tmp_path / "d", 9000, 20_000, 5_000, 100, 3, labels_per_row=4, words_per_row=50)
    train, test = load(tmp_path / "d" / "train.txt"), load(tmp_path / "d" / "test.txt")
    assert (len(train), len(test)) == (9000, 100)
    assert (train.features, train.labels) == (test.features, test.labels) == (20_000, 5_000)
    assert train.y.nnz / len(train) == pytest.approx(4, rel=0.1)
    assert train.x.nnz / len(train) == pytest.approx(50, rel=0.15)
    lengths = np.sqrt(train.x.to_scipy().power(2).sum(1))
    np.testing.assert_allclose(lengths, 1, atol=0.01)
    counts = np.bincount(train.y.indices, minlength=5000)
    assert 0.01 < counts.max() / len(train) < 0.06
    assert counts[:100].sum() > counts[100:200].sum() > counts[1000:1100].sum()  # sorted by popularity
    for name, count in (("labels.txt", 5_000), ("features.txt", 20_000)):
        names = read_names(tmp_path / "d" / name)
        assert len(names) == len(set(names)) == count
        assert all(word.isalpha() and len(word) <= 8 for word in names)


def test_labels_can_be_learned(tmp_path: Path) -> None:
    synthesize(tmp_path / "d", 3000, 3000, 300, 500, 5)
    train, test = load(tmp_path / "d" / "train.txt"), load(tmp_path / "d" / "test.txt")
    centroids = normalize((train.y.to_scipy().T @ train.x.to_scipy()).tocsr())
    scores = (test.x.to_scipy() @ centroids.T).toarray()
    truth = test.y.to_scipy().toarray() > 0
    assert truth[np.arange(500), scores.argmax(1)].mean() > 0.8
    assert truth.mean(0).max() < 0.2  # the precision of always predicting the same label


def test_small_and_odd_shapes(tmp_path: Path) -> None:
    for i, (rows, features, labels, test_rows) in enumerate([(1, 1, 1, 0), (3, 2, 1, 1), (2, 1, 9, 2)]):
        synthesize(tmp_path / str(i), rows, features, labels, test_rows, i, labels_per_row=1, words_per_row=1)
        assert len(load(tmp_path / str(i) / "train.txt", format="xmc", base=0)) == rows
        assert (tmp_path / str(i) / "test.txt").exists() == (test_rows > 0)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="exists already"):
        synthesize(tmp_path, 1, 1, 1, 1, 0)
    with pytest.raises(ConfigError, match="labels: expected a number, 1 to 2147483647, not 0"):
        synthesize(tmp_path / "d", 1, 1, 0, 1, 0)
    assert list(tmp_path.iterdir()) == []
