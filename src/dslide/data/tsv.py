"""Raw text with labels: `label label<TAB>text` per line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from ..errors import DataError
from .dataset import Dataset
from .files import BLOCK_BYTES, decode_lines, line_blocks
from .rows import SparseRows
from .text import TextVectorizer


def read_tsv(
    path: str | Path,
    vectorizer: TextVectorizer | None = None,
    label_names: Sequence[str] | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Dataset:
    """Texts through the vectorizer (one learned from them if None is given), labels to numbers.

    Without `label_names` labels are numbered by falling frequency, then by name. With them, labels they lack
    get the numbers behind: a model can't predict those, but an honest recall has to count them.
    """
    labels, texts = _read_columns(path, block_bytes)
    counts = Counter(label for row in labels for label in row)
    new = sorted(counts.keys() - set(label_names or ()), key=lambda label: (-counts[label], label))
    names = [*(label_names or ()), *new]
    number_of = {name: number for number, name in enumerate(names)}
    if len(number_of) < len(names):
        raise DataError("label_names: a name is there more than once")
    indices = np.fromiter((number_of[label] for row in labels for label in row), np.int32)
    indptr = np.cumsum([0, *map(len, labels)], dtype=np.int64)
    y = sp.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=(len(labels), len(names)))
    try:
        if vectorizer is None or not vectorizer.words:
            vectorizer = vectorizer or TextVectorizer()
            x = vectorizer.fit_transform(texts)
        else:
            x = vectorizer.transform(texts)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return Dataset(
        x,
        SparseRows.from_scipy(y),
        label_names=names,
        feature_names=vectorizer.words,
        vectorizer=vectorizer,
        source=str(path),
        unknown_labels=0 if label_names is None else len(new),
    )


def _read_columns(path: str | Path, block_bytes: int) -> tuple[list[list[str]], list[str]]:
    labels: list[list[str]] = []
    texts: list[str] = []
    blank: int | None = None  # the first of the blank lines since the last row; fine if no row follows
    for first, block in line_blocks(path, block_bytes):
        for line, content in enumerate(decode_lines(path, first, block), first):
            columns = content.split("\t")
            if len(columns) == 2:
                if blank is not None:
                    raise DataError(
                        f"{path}, line {blank}: the line is blank, expected labels, a tab and a text"
                    )
                labels.append(columns[0].split())
                texts.append(columns[1])
            elif content.strip():
                raise DataError(
                    f"{path}, line {line}: expected labels, one tab and a text, found {len(columns) - 1} tabs"
                )
            elif blank is None:
                blank = line
    if not texts:
        raise DataError(f"{path}: there are no rows")
    return labels, texts
