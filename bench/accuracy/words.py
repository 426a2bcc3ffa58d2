"""Bags of words as text files, the same rows for all systems."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dslide.data import Dataset
from dslide.training.reading import Reading, read_test_data, read_training_data


def write_bag_of_words(options: Mapping[str, Any], train_file: Path, test_file: Path, folder: Path) -> None:
    """The rows that dslide trains on with these options, as train.txt and test.txt for other systems."""
    reading = Reading.of(options)
    rows = read_training_data(train_file, reading)
    test = read_test_data(test_file, rows, reading)
    assert isinstance(rows, Dataset)
    assert isinstance(test, Dataset)
    folder.mkdir(parents=True, exist_ok=True)
    write_xmc(rows, folder / "train.txt", rows.features)
    write_xmc(test, folder / "test.txt", rows.features)


def write_xmc(data: Dataset, path: Path, features: int) -> None:
    """XMLRepository text with so many features, without the weights of labels. The first index is 0."""
    x, y = data.x, data.y
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{len(data)} {features} {data.labels}\n")
        for row in range(len(data)):
            begin, end = x.indptr[row], x.indptr[row + 1]
            pairs = zip(x.indices[begin:end].tolist(), x.values[begin:end].tolist(), strict=True)
            labels = ",".join(map(str, y.indices[y.indptr[row] : y.indptr[row + 1]].tolist()))
            file.write(labels + "".join(f" {column}:{value:.6g}" for column, value in pairs) + "\n")
