"""Loading a dataset of any format."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from dslide.data.dataset import Dataset
from dslide.data.dense_rows import MixedRows
from dslide.data.files import line_blocks, open_file, quoted
from dslide.data.formats.folder import MANIFEST, open_dataset
from dslide.data.formats.interaction_table import names_users_and_items
from dslide.data.formats.interactions import item_count, read_any, read_with_history
from dslide.data.formats.jsonl import jsonl_rows
from dslide.data.formats.labelled_text import Row, labelled_text, plain_rows
from dslide.data.formats.matrix import ARCHIVE, MAGIC, dense_rows, is_dense_archive, read_dense
from dslide.data.formats.npz import find_npz_pair, read_npz_pair
from dslide.data.formats.parquet import ParquetTable, is_parquet
from dslide.data.formats.parquet_text import parquet_rows
from dslide.data.formats.svm_text import Base, looks_like_header, looks_like_row, read_svm_text
from dslide.data.formats.table import split_first_line
from dslide.data.formats.tsv import is_labelled_text, tsv_rows
from dslide.data.layout import Column, Layout, TextColumns, text_option
from dslide.data.rows import MAX_COLUMNS, SparseRows
from dslide.data.text import TextVectorizer
from dslide.errors import ConfigError, DataError

Format = Literal["xmc", "libsvm", "npz", "npy", "tsv", "jsonl", "parquet", "text", "csr", "interactions", "tokens"]
TEXT_FORMATS = ("tsv", "jsonl", "parquet", "text")  # raw text
# Labels and texts of a file, whose layout may be given, or that of the file a model was trained on.
TEXT_ROWS: dict[str, Callable[[str | Path, Layout, Layout | None], Iterator[Row]]] = {
    "tsv": tsv_rows,
    "jsonl": jsonl_rows,
    "parquet": parquet_rows,
    "text": plain_rows,
}
FORMATS: tuple[Format, ...] = get_args(Format)


def load(
    path: str | Path,
    *,
    format: Format | Literal["auto"] = "auto",
    base: Base = "auto",
    features: int | None = None,
    labels: int | None = None,
    y: str | Path | None = None,
    embeddings: str | Path | None = None,
    vectorizer: TextVectorizer | None = None,
    label_names: Sequence[str] | None = None,
    separator: str | None = None,
    header: bool | None = None,
    label_separator: str | None = None,
    label_column: Column | None = None,
    text_column: TextColumns | None = None,
    user_column: Column | None = None,
    item_column: Column | None = None,
    weight_column: Column | None = None,
    time_column: Column | None = None,
    layout: Layout | None = None,
    threads: int | None = None,
    history: Dataset | str | Path | None = None,
) -> Dataset:
    """Loads a dataset. Text files may be compressed with gzip or xz.

    Parameters
    ----------
    path : path
        A file, or a folder if the format is a folder.
    format : str
        By default the format is detected.

        - `xmc`: XMLRepository text with a header
        - `libsvm`: the same without a header; the sizes are `features` and `labels`, or follow from the largest indices
        - `npz`: scipy matrices X.npz and Y.npz (or `y`)
        - `npy`: a dense matrix of float16, float32 or float64, which is mapped into memory: an .npy file, or an .npz
          archive that numpy.savez wrote; labels are `y` or an array y of the archive
        - `tsv`: `label label<TAB>text`, or a table with other separators and columns, vectorized with `vectorizer` or
          a new one
        - `jsonl`: one line `{"text": ..., "labels": [...]}` per row, vectorized in the same way
        - `parquet`: the same from columns of labels (lists, or texts to be split) and of texts
        - `text`: one text per line, without labels, for a `vectorizer` that has learned words
        - `csr`: a folder written by `write_dataset` or `convert`
        - `interactions`: a table with one line per pair of user and item, detected only by its header, or lines
          `user item item ...`, which are never detected, since libsvm looks the same
        - `tokens`: see `load_tokens`

    base : {"auto", 0, 1}
        The lowest index of xmc and libsvm text. "auto": 1 for libsvm if no 0 occurs; 1 for xmc if, in addition, an
        index equal to the number of columns occurs. For test data, pass the `base` of the training data's Dataset.
    features, labels : int
        Expected numbers of columns: data that differs is refused.
    y : path
        File of labels for `npz` and `npy`; by default Y.<any> beside a file X.<any>. For `npy` it is a .npy file of
        classes (whole numbers from 0, or texts) or of a matrix, a scipy matrix in an .npz file, or text whose lines
        have the names of each row's labels.
    embeddings : path
        File of a dense matrix, as for `npy`, with further features of the rows.
    vectorizer : TextVectorizer
        Turns texts into features; by default a new one learns their words.
    label_names : list of str
        Expected names: data that differs is refused, except that labels of tsv text without a name get the columns
        after all others (`unknown_labels`).
    separator : str
        Separator between the columns of a table.
    header : bool
        Whether the first line of a table has the names of columns.
    label_separator : str
        Separator between labels; by default blanks.
    label_column, text_column, user_column, item_column, weight_column, time_column : str or int
        Columns of tables, by their names in the header, or by numbers from 1; in JSON Lines, keys. By default columns
        with usual names, such as text and labels or user_id and item_id, or the first two. The weight is that of an
        item as a label. There may be several columns of text, with factors for how often their words count:
        `{"title": 3, "abstract": 1}`, or `"title:3,abstract"`.
    layout : Layout
        Values for arguments above that are not given, such as the layout of another Dataset.
    threads : int
        Threads that parse xmc and libsvm text; by default one per core.
    history : path or Dataset
        For interactions, whose features and labels are the same items: features are the items of the same users in
        `history`, and items that do not occur there are `unknown_labels`.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        Data that can't be read; the message names file, line and value.
    """
    given = Layout(
        separator, header, label_separator, label_column, text_option(text_column), user_column, item_column,
        weight_column, time_column,
    )  # fmt: skip
    format = checked_format(path, format, base, y, given, features=features, labels=labels, threads=threads)
    if history is not None and format != "interactions":
        raise ConfigError(f"history: only interactions have one, not {format} data")
    if format == "interactions":
        items, both = item_count(features, labels), given.over(layout)
        if history is None:
            dataset = read_any(path, items, threads, both, label_names)
        else:
            dataset = read_with_history(path, items, threads, history, both)
    elif format in TEXT_ROWS:
        check_words(path, format, vectorizer)
        rows = TEXT_ROWS[format](path, given, layout)
        dataset = labelled_text(path, rows, vectorizer, label_names, given.over(layout))
    elif format == "npz":
        dataset = read_npz_pair(path, y)
    elif format == "npy":
        both = given.over(layout)
        dataset = dataclasses.replace(read_dense(path, y, label_names, labels, both.label_separator), layout=both)
    elif format == "csr":
        dataset = open_dataset(path)
    else:
        header = format == "xmc"
        dataset = read_svm_text(path, header=header, base=base, features=features, labels=labels, threads=threads)
    if embeddings is not None:
        dataset = _with_embeddings(dataset, embeddings, format)
    return as_expected(dataset, features, labels, vectorizer, label_names)


def _with_embeddings(data: Dataset, path: str | Path, format: Format) -> Dataset:
    """The rows with those of a file of dense features beside."""
    if format in ("npy", "interactions") or not isinstance(data.x, SparseRows):
        raise ConfigError(f"embeddings: are beside rows of sparse features or texts, not beside {format} data")
    dense = dense_rows(path)
    if len(dense) != len(data):
        raise DataError(f"{path}: has {len(dense)} rows, but {data.source} has {len(data)}")
    names = data.feature_names
    if names is not None:
        names = [*names, *(f"dense {number}" for number in range(dense.columns))]
    return dataclasses.replace(data, x=MixedRows(data.x, dense), feature_names=names)


def detect_format(path: str | Path, layout: Layout | None = None, texts: bool = False) -> Format:
    """The format of a file or folder, by the columns that are given for it, by its name and its first line. `texts`: a
    file of no other format is one of texts.

    Parameters
    ----------
    path : path
        File or folder.
    layout : Layout
        Columns that are given.
    texts : bool
        Whether a file of no other format is one of texts.

    Returns
    -------
    str
        One of `FORMATS`.

    Raises
    ------
    DataError
        The format can't be told.
    """
    if os.path.isdir(path):
        if (Path(path) / MANIFEST).exists():
            return "csr"
        if find_npz_pair(path, None):
            return "npz"
        raise DataError(f"{path}: the folder holds no dataset, neither {MANIFEST} nor X.npz nor X.trn.npz")
    with open_file(path) as file:
        start = file.read(len(MAGIC))
    if start == MAGIC or (start[:4] == ARCHIVE and is_dense_archive(path)):
        return "npy"
    if start[:4] == ARCHIVE:
        return "npz"
    if is_parquet(path):
        given = set() if layout is None else layout.columns().keys()
        interactions = names_users_and_items(ParquetTable(path).names) or given & {"user_column", "item_column"}
        return "interactions" if interactions and not given & {"text_column", "label_column"} else "parquet"
    cells, columns = split_first_line(path), () if layout is None else layout.columns()
    if names_users_and_items(cells) or "user_column" in columns or "item_column" in columns:
        return "interactions"
    is_json = cells[:1] and cells[0].lstrip().startswith("{")
    if re.search(r"\.tsv(\.gz|\.xz)?$", str(path)) or is_labelled_text(cells) or (columns and not is_json):
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
    if texts:
        return "tsv" if b"\t" in line else "text"
    table = ", and of a table of text the columns, label_column and text_column" if len(cells) > 1 else ""
    raise DataError(
        f"{path}: can't tell the format from the first line {quoted(line)}, "
        f"give it as one of {', '.join(FORMATS)} if it is one{table}"
    )


def checked_format(
    path: str | Path, format: Format | Literal["auto"], base: Base, y: object, layout: Layout, **numbers: int | None
) -> Format:  # fmt: skip
    """The format; raises ConfigError for a bad value, or an option that the format does not have."""
    if format == "auto":
        format = detect_format(path, layout)
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
    if y is not None and format not in ("npz", "npy"):
        raise ConfigError(f"y: {format} data has labels and features together")
    for name, number in numbers.items():
        high = 1024 if name == "threads" else MAX_COLUMNS
        if number is not None and not 1 <= number <= high:
            raise ConfigError(f"{name}: expected a whole number, 1 to {high}, not {number}")
    layout.refuse_for(format)
    return format


def check_words(path: str | Path, format: Format, vectorizer: TextVectorizer | None) -> None:
    """DataError for texts without labels that nothing knows the words of."""
    if format == "text" and (vectorizer is None or not vectorizer.words):
        raise DataError(f"{path}: lines of text without labels are only for models that were trained on text")


def as_expected(
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
