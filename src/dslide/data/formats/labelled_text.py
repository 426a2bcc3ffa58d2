"""Texts and the names of their labels as rows of numbered features and labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dslide.data.dataset import Dataset
from dslide.data.files import decode_lines, line_blocks
from dslide.data.layout import Layout
from dslide.data.rows import SparseRows
from dslide.data.text import Text, TextVectorizer
from dslide.errors import DataError
from dslide.util.csr import indptr_of

Row = tuple[Collection[str], Text]  # names of labels, and a text
NO_ROWS = "there are no rows"


def labelled_text(
    path: str | Path,
    rows: Iterable[Row],
    vectorizer: TextVectorizer | None,
    label_names: Sequence[str] | None,
    layout: Layout | None = None,
) -> Dataset:
    """Texts vectorized (by a new vectorizer, if none has learned words), labels numbered by `number_names`."""
    labels: list[Collection[str]] = []
    texts: list[Text] = []
    for of_row, text in rows:
        labels.append(of_row)
        texts.append(text)
    if not texts:
        raise DataError(f"{path}: {NO_ROWS}")
    names, number_of = number_names(Counter(label for row in labels for label in row), label_names)
    y = label_rows(labels, number_of)
    try:
        if vectorizer is None or not vectorizer.words:
            vectorizer = vectorizer or TextVectorizer()
            x = vectorizer.fit_transform_rows(texts)
        else:
            if vectorizer.grows:
                vectorizer.grow(texts)
                vectorizer.grows = False
            x = vectorizer.transform_rows(texts)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    unknown = 0 if label_names is None else len(names) - len(label_names)
    return Dataset(
        x, y, names, vectorizer.words, vectorizer, str(path), unknown_labels=unknown,
        layout=layout or Layout(),
    )  # fmt: skip


def plain_rows(path: str | Path, layout: Layout | None = None, known: Layout | None = None) -> Iterator[Row]:
    """A row without labels for every line."""
    for first, block in line_blocks(path):
        for line in decode_lines(path, first, block):
            yield (), line


def label_rows(labels: Sequence[Collection[str]], number_of: Mapping[str, int]) -> SparseRows:
    """Names of labels as rows of numbers; one that is there twice counts twice."""
    indices = np.fromiter((number_of[label] for row in labels for label in row), np.int32)
    indptr = indptr_of(np.array([len(row) for row in labels]))
    y = sp.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=(len(labels), len(number_of)))
    return SparseRows.from_scipy(y)


def number_names(counts: Mapping[str, int], known: Sequence[str] | None) -> tuple[list[str], dict[str, int]]:
    """All names that are counted, and the number of each. Without `known` ones by falling frequency, then by name. With
    them, others get the numbers after: a model can't predict those, but recall has to count them."""
    new = sorted(counts.keys() - set(known or ()), key=lambda name: (-counts[name], name))
    names = [*(known or ()), *new]
    number_of = {name: number for number, name in enumerate(names)}
    if len(number_of) < len(names):
        raise DataError("label_names: a name occurs more than once")
    return names, number_of
