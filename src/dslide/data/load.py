"""Loading a dataset of any format, or converting it to a dataset folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from dslide.data.dataset import Dataset
from dslide.data.files import line_blocks, open_file, quoted
from dslide.data.formats.folder import MANIFEST, RowsFiles, complete_folder, open_dataset, write_dataset
from dslide.data.formats.interactions import item_count, read_any, read_with_history
from dslide.data.formats.jsonl import read_jsonl
from dslide.data.formats.npz import find_npz_pair, read_npz_pair
from dslide.data.formats.svm_text import Base, looks_like_header, looks_like_row, read_svm_text
from dslide.data.formats.tsv import read_tsv
from dslide.data.rows import MAX_COLUMNS
from dslide.data.text import TextVectorizer
from dslide.errors import ConfigError, DataError
from dslide.util.atomic import new_folder

Format = Literal["xmc", "libsvm", "npz", "tsv", "jsonl", "csr", "interactions", "tokens"]
TEXT_FORMATS = ("tsv", "jsonl")  # raw text with labels
FORMATS: tuple[Format, ...] = get_args(Format)


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
    user_column: str | None = None,
    item_column: str | None = None,
    threads: int | None = None,
    history: Dataset | str | Path | None = None,
) -> Dataset:
    """Loads a dataset; text may be plain, gzip or xz.

    Formats:
    - `xmc`: XMLRepository text with a header
    - `libsvm`: the same without a header; sizes are `features` and `labels`, or follow from the largest index
    - `npz`: scipy matrices X.npz and Y.npz (or `y`)
    - `tsv`: `label label<TAB>text`, vectorized with `vectorizer` or a new one
    - `jsonl`: a line `{"text": ..., "labels": [...]}` for each row, vectorized in the same way
    - `csr`: a folder written by `write_dataset` or `convert`
    - `interactions`: `user item item ...`, or a table with a header and a line for each user and item; never detected,
      since libsvm looks the same
    - `tokens`: see `load_tokens`

    `base` is the lowest index of xmc and libsvm text. "auto": 1 for libsvm if no 0 occurs, for xmc only if also an
    index equal to the number of columns occurs; give test data the `base` of the training data's Dataset. `features`,
    `labels` and `label_names` are the expected ones: data that differs is refused, except that labels of tsv text
    without a name get the columns after all others (`unknown_labels`).

    Interactions have the same items as features and as labels. With `history`, a file or a Dataset loaded from one,
    features are the items of the same users there, and items that it lacks are `unknown_labels`.

    `label_column` and `text_column`, counted from 1, are the columns of labels and text in tsv lines with others; a
    vectorizer remembers them. `user_column` and `item_column` are names of columns in a table of interactions; without
    them, those named user and item (user_id, userId), or the first two.
    """
    columns = (label_column, text_column)
    format = _checked(path, format, base, y, columns, features=features, labels=labels, threads=threads)
    if history is not None and format != "interactions":
        raise ConfigError(f"history: only interactions have one, not {format} data")
    for name, column in (("user_column", user_column), ("item_column", item_column)):
        if column is not None and format != "interactions":
            raise ConfigError(f"{name}: only interactions have users and items, not {format} data")
    if format == "interactions":
        items, named = item_count(features, labels), (user_column, item_column)
        if history is None:
            dataset = read_any(path, items, threads, named, label_names)
        else:
            dataset = read_with_history(path, items, threads, history, named)
    elif format == "jsonl":
        dataset = read_jsonl(path, vectorizer, label_names)
    elif format == "tsv":
        dataset = read_tsv(path, vectorizer, label_names, columns)
    elif format == "npz":
        dataset = read_npz_pair(path, y)
    elif format == "csr":
        dataset = open_dataset(path)
    else:
        header = format == "xmc"
        dataset = read_svm_text(path, header=header, base=base, features=features, labels=labels, threads=threads)
    return _as_expected(dataset, features, labels, vectorizer, label_names)


def convert(
    path: str | Path, folder: str | Path, *, format: Format | Literal["auto"] = "auto", base: Base = "auto",
    features: int | None = None, labels: int | None = None, y: str | Path | None = None,
    vectorizer: TextVectorizer | None = None, label_names: Sequence[str] | None = None,
    label_column: int | None = None, text_column: int | None = None, threads: int | None = None,
) -> None:  # fmt: skip
    """Writes the result of `load` with the same options to a new folder. xmc and libsvm text may exceed memory."""
    columns = (label_column, text_column)
    format = _checked(path, format, base, y, columns, features=features, labels=labels, threads=threads)
    if format not in ("xmc", "libsvm"):
        dataset = load(
            path, format=format, features=features, labels=labels, y=y, vectorizer=vectorizer,
            label_names=label_names, label_column=label_column, text_column=text_column,
        )  # fmt: skip
        write_dataset(dataset, folder)
        return
    with new_folder(folder) as partial, RowsFiles(partial, "x") as x_files, RowsFiles(partial, "y") as y_files:
        dataset = read_svm_text(
            path, x_files, y_files, header=format == "xmc", base=base, features=features, labels=labels, threads=threads
        )
        if label_names is not None:
            dataset = dataset.with_label_names(label_names)
        complete_folder(partial, dataset, x_files, y_files)


def detect_format(path: str | Path) -> Format:
    """The format of a file or folder, by its name and its first line."""
    if os.path.isdir(path):
        if (Path(path) / MANIFEST).exists():
            return "csr"
        if find_npz_pair(path, None):
            return "npz"
        raise DataError(f"{path}: the folder holds no dataset, neither {MANIFEST} nor X.npz nor X.trn.npz")
    with open_file(path) as file:
        if file.read(4) == b"PK\x03\x04":
            return "npz"
    if re.search(r"\.tsv(\.gz|\.xz)?$", str(path)):
        return "tsv"
    if re.search(r"\.jsonl(\.gz|\.xz)?$", str(path)):
        return "jsonl"
    _, block = next(line_blocks(path, block_bytes=1 << 16))
    line = block[: block.index(b"\n")]
    if looks_like_header(line):
        return "xmc"
    if looks_like_row(line):
        return "libsvm"
    if line.lstrip().startswith(b"{"):
        return "jsonl"
    raise DataError(
        f"{path}: can't tell the format from the first line {quoted(line)}, "
        f"give it as one of {', '.join(FORMATS)} if it is one"
    )


def _checked(
    path: str | Path, format: Format | Literal["auto"], base: Base, y: object,
    columns: tuple[int | None, int | None], **numbers: int | None,
) -> Format:  # fmt: skip
    """The format; raises ConfigError for a bad value, or an option that the format does not have."""
    if format == "auto":
        format = detect_format(path)
    if format not in FORMATS:
        raise ConfigError(f"format: expected auto or one of {', '.join(FORMATS)}, not {format!r}")
    if format == "tokens":
        raise ConfigError(
            "format: rows of a token stream are made in training, so it can't be loaded or converted; "
            "give the file to dslide train, or in Python to dslide.data.load_tokens"
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
    for name, column in zip(("label_column", "text_column"), columns, strict=True):
        if column is not None and format != "tsv":
            raise ConfigError(f"{name}: only tsv text has columns to choose from, not {format} data")
        if column is not None and column < 1:
            raise ConfigError(f"{name}: columns are counted from 1, not {column}")
    return format


def _as_expected(
    dataset: Dataset, features: int | None, labels: int | None,
    vectorizer: TextVectorizer | None, label_names: Sequence[str] | None,
) -> Dataset:  # fmt: skip
    """The dataset, with the given label names if it has none; refused if it differs from what is expected."""
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
