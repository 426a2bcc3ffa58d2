"""One entry for every kind of dataset file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dslide.data.dataset import Dataset
from dslide.data.files import line_blocks, open_file, quoted
from dslide.data.formats.folder import MANIFEST, open_dataset
from dslide.data.formats.interactions import read_interactions, with_history
from dslide.data.formats.npz import find_npz_pair, read_npz_pair
from dslide.data.formats.svm_text import Base, looks_like_header, looks_like_row, read_svm_text
from dslide.data.formats.tsv import read_tsv
from dslide.data.rows import MAX_COLUMNS, RowsBuilder
from dslide.data.text import TextVectorizer
from dslide.errors import ConfigError, DataError

Format = Literal["xmc", "libsvm", "npz", "tsv", "csr", "interactions", "tokens"]
FORMATS: tuple[Format, ...] = ("xmc", "libsvm", "npz", "tsv", "csr", "interactions", "tokens")


def load(
    path: str | Path,
    *,
    format: Format | Literal["auto"] = "auto",
    base: Base = "auto",
    features: int | None = None,
    labels: int | None = None,
    y: str | Path | None = None,
    vectorizer: TextVectorizer | None = None,
    label_names: Sequence[str] | None = None,
    label_column: int | None = None,
    text_column: int | None = None,
    threads: int | None = None,
    history: Dataset | str | Path | None = None,
) -> Dataset:
    """Loads a dataset; text may be plain, gzip or xz.

    Formats: `xmc` (XMLRepository text with a header), `libsvm` (the same without; sizes from `features` and
    `labels` or the largest index), `npz` (scipy matrices X.npz and Y.npz, or `y`), `tsv`
    (`label label<TAB>text`, through `vectorizer` or one learned from it), `csr` (a folder made by
    `write_dataset` or `convert`), `interactions` (`user item item ...`; never found out, since libsvm looks the same).
    For `tokens` see `load_tokens`.

    `base` is what xmc and libsvm indices count from. "auto" takes 1 for libsvm if no 0 occurs, for xmc only
    if also the index that would be too large by one occurs; give test data the `base` of the training data's
    Dataset. `features` and `labels` are the sizes expected, `label_names` the names expected: what differs is
    refused, except that labels of tsv text which have no name get the numbers behind (`unknown_labels`).

    Interactions have the same items as features and as labels, unless their `history` is given, a file or what was
    loaded from it: then features are the items that the same users have there, and items that it lacks are
    `unknown_labels`.

    `label_column` and `text_column`, counted from 1, say where labels and text are in tsv lines with other columns too;
    a vectorizer remembers them.
    """
    if format == "auto":
        format = detect_format(path)
    check_options(format, base, y, features=features, labels=labels, threads=threads)
    if history is not None and format != "interactions":
        raise ConfigError(f"history: only interactions have one, not {format} data")
    check_columns(format, label_column=label_column, text_column=text_column)
    if format == "interactions":
        dataset = _load_interactions(path, features, labels, history, threads)
    elif format == "tsv":
        dataset = read_tsv(path, vectorizer, label_names, (label_column, text_column))
    elif format == "npz":
        dataset = read_npz_pair(path, y)
    elif format == "csr":
        dataset = open_dataset(path)
    else:
        dataset = _load_svm_text(path, format == "xmc", base, features, labels, threads)
    return _as_expected(dataset, features, labels, vectorizer, label_names)


def detect_format(path: str | Path) -> Format:
    """The format of a file or folder, by its name and its first line."""
    if os.path.isdir(path):
        if (Path(path) / MANIFEST).exists():
            return "csr"
        if find_npz_pair(path, None):
            return "npz"
        raise DataError(f"{path}: the folder holds no dataset, neither {MANIFEST} nor X.npz nor X.trn.npz")
    with open_file(path) as file:
        magic = file.read(4)
    if magic == b"PK\x03\x04":
        return "npz"
    if re.search(r"\.tsv(\.gz|\.xz)?$", str(path)):
        return "tsv"
    _, block = next(line_blocks(path, block_bytes=1 << 16))
    line = block[: block.index(b"\n")]
    if looks_like_header(line):
        return "xmc"
    if looks_like_row(line):
        return "libsvm"
    raise DataError(
        f"{path}: can't tell the format from the first line {quoted(line)}, "
        f"give it as one of {', '.join(FORMATS)} if it is one"
    )


def check_options(format: str, base: Base, y: object, **numbers: int | None) -> None:
    """Raises ConfigError for a value that is none, or an option that the format has no use for."""
    if format not in FORMATS:
        raise ConfigError(f"format: expected auto or one of {', '.join(FORMATS)}, not {format!r}")
    if format == "tokens":
        raise ConfigError(
            "format: a stream of tokens has no rows until training draws them, so it can't be loaded or converted; "
            "dslide train takes the file itself, and in Python dslide.data.load_tokens does"
        )
    if base not in ("auto", 0, 1) or isinstance(base, bool):
        raise ConfigError(f"base: expected auto, 0 or 1, not {base!r}")
    if base == 1 and format not in ("xmc", "libsvm"):
        raise ConfigError(f"base: {format} data always counts from 0")
    if y is not None and format != "npz":
        raise ConfigError(f"y: {format} data has labels and features together")
    for name, number in numbers.items():
        high = 1024 if name == "threads" else MAX_COLUMNS
        if number is not None and not 1 <= number <= high:
            raise ConfigError(f"{name}: expected a whole number, 1 to {high}, not {number}")


def check_columns(format: str, **columns: int | None) -> None:
    """Raises ConfigError for a number that no column has, or if the format has no columns."""
    for name, column in columns.items():
        if column is not None and format != "tsv":
            raise ConfigError(f"{name}: only tsv text has columns to choose from, not {format} data")
        if column is not None and column < 1:
            raise ConfigError(f"{name}: columns are counted from 1, not {column}")


def _load_svm_text(
    path: str | Path, header: bool, base: Base, features: int | None, labels: int | None, threads: int | None
) -> Dataset:
    x, y = RowsBuilder(), RowsBuilder()
    shape = read_svm_text(path, x, y, header=header, base=base, features=features, labels=labels, threads=threads)
    return Dataset(
        x.finish(shape.rows, shape.features, shape.base),
        y.finish(shape.rows, shape.labels, shape.base),
        source=str(path),
        base=shape.base,
    )


def _load_interactions(
    path: str | Path, features: int | None, labels: int | None, history: Dataset | str | Path | None,
    threads: int | None,
) -> Dataset:  # fmt: skip
    if features is not None and labels is not None and features != labels:
        raise ConfigError(f"labels: interactions have as many labels as features, not {labels} and {features}")
    items = labels if features is None else features
    if history is None:
        return read_interactions(path, items, threads)
    if not isinstance(history, Dataset):
        history = read_interactions(history, items, threads)
    return with_history(read_interactions(path, None, threads), history)


def _as_expected(
    dataset: Dataset,
    features: int | None,
    labels: int | None,
    vectorizer: TextVectorizer | None,
    label_names: Sequence[str] | None,
) -> Dataset:
    """The dataset, with the given label names if it has none; refused if it is not what is expected."""
    if len(dataset) == 0:
        raise DataError(f"{dataset.source}: there are no rows")
    known_labels = dataset.labels - dataset.unknown_labels
    for what, found, expected in (("features", dataset.features, features), ("labels", known_labels, labels)):
        if expected is not None and found != expected:
            raise DataError(f"{dataset.source}: has {found} {what}, but {expected} are expected")
    if vectorizer is not None and dataset.vectorizer is not None and dataset.vectorizer != vectorizer:
        raise DataError(f"{dataset.source}: was made from text with another vocabulary than the one expected")
    if label_names is None:
        return dataset
    if dataset.label_names is None:
        return dataset.with_label_names(label_names)
    if list(dataset.label_names)[:known_labels] != list(label_names):
        raise DataError(f"{dataset.source}: has other label names than those expected")
    return dataset
