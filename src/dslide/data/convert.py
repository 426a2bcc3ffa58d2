"""Dataset files of any format to dataset folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dslide.data.formats.folder import RowsFiles, complete_folder, write_dataset
from dslide.data.formats.svm_text import Base, parse_svm_text
from dslide.data.load import Format, check_columns, check_options, detect_format, load
from dslide.data.text import TextVectorizer
from dslide.errors import DataError
from dslide.util.atomic import new_folder


def convert(
    path: str | Path,
    folder: str | Path,
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
) -> None:
    """Writes the result of `load` with the same options to a new folder. xmc and libsvm text may exceed memory."""
    if format == "auto":
        format = detect_format(path)
    check_options(format, base, y, features=features, labels=labels, threads=threads)
    check_columns(format, label_column=label_column, text_column=text_column)
    if format not in ("xmc", "libsvm"):
        dataset = load(
            path, format=format, features=features, labels=labels, y=y, vectorizer=vectorizer,
            label_names=label_names, label_column=label_column, text_column=text_column,
        )  # fmt: skip
        write_dataset(dataset, folder)
        return
    with new_folder(folder) as partial:
        with RowsFiles(partial, "x") as x_files, RowsFiles(partial, "y") as y_files:
            shape = parse_svm_text(
                path, x_files, y_files, header=format == "xmc", base=base, features=features, labels=labels,
                threads=threads,
            )  # fmt: skip
            about = {
                "x": x_files.finish(shape.rows, shape.features, shape.base),
                "y": y_files.finish(shape.rows, shape.labels, shape.base),
            }
        if label_names is not None and len(label_names) != shape.labels:
            raise DataError(f"{path}: there are {shape.labels} labels but {len(label_names)} label names")
        complete_folder(partial, shape.rows, about, source=str(path), base=shape.base, label_names=label_names)
