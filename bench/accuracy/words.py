"""Bags of words as text files, the same rows for all systems."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from dslide.data import Dataset, TextOptions, TextVectorizer, load

READING = ("format", "label_column", "text_column")  # options that are needed to read the files of a recipe


def write_bag_of_words(recipe: dict[str, Any], train_file: Path, test_file: Path, folder: Path) -> None:
    """The rows that the recipe's network is trained on, as train.txt and test.txt for other systems."""
    reading = {name: recipe[name] for name in READING if name in recipe}
    names = [field.name for field in dataclasses.fields(TextOptions)]
    words = None
    if recipe["format"] == "tsv":
        words = TextVectorizer(TextOptions(**{name: recipe[name] for name in names if name in recipe}))
    rows = load(train_file, **reading, vectorizer=words)
    test = load(test_file, **reading, vectorizer=words, label_names=rows.label_names)
    folder.mkdir(parents=True, exist_ok=True)
    write_xmc(rows, folder / "train.txt")
    write_xmc(test, folder / "test.txt")


def write_xmc(data: Dataset, path: Path) -> None:
    """XMLRepository text, without the weights of labels."""
    x, y = data.x, data.y
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{len(data)} {data.features} {data.labels}\n")
        for row in range(len(data)):
            begin, end = x.indptr[row], x.indptr[row + 1]
            pairs = zip(x.indices[begin:end].tolist(), x.values[begin:end].tolist(), strict=True)
            labels = ",".join(map(str, y.indices[y.indptr[row] : y.indptr[row + 1]].tolist()))
            file.write(labels + "".join(f" {column}:{value:.6g}" for column, value in pairs) + "\n")
