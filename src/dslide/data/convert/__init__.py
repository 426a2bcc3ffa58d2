"""Conversion of data of any format to a dataset folder, in an amount of memory that does not grow with the rows."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from dslide.config import check_name
from dslide.data.convert.leftovers import find_leftover, without_leftovers
from dslide.data.convert.npz import convert_npz
from dslide.data.convert.processes import processes_for
from dslide.data.convert.progress import NOTES, Progress, can_go_on, fingerprint
from dslide.data.convert.texts import convert_texts
from dslide.data.formats.folder import RowsFiles, complete_folder, write_dataset
from dslide.data.formats.svm_text import Base, read_svm_text
from dslide.data.layout import LAYOUT_OPTIONS, Layout
from dslide.data.load import TEXT_ROWS, Format, as_expected, check_words, checked_format, load
from dslide.data.text import TextVectorizer
from dslide.errors import ConfigError, DataError
from dslide.util.atomic import new_folder

Paths = str | Path | Sequence[str | Path]


def convert(
    path: Paths, folder: str | Path, *, format: Format | Literal["auto"] = "auto", base: Base = "auto",
    features: int | None = None, labels: int | None = None, y: str | Path | None = None,
    vectorizer: TextVectorizer | None = None, label_names: Sequence[str] | None = None,
    embeddings: str | Path | None = None, threads: int | None = None, progress: Callable[[str], None] | None = None,
    **layout: Any,
) -> None:  # fmt: skip
    """Writes the rows that `load` reads with the same options to a new folder, which appears complete or not at all.

    Memory does not grow with the number of rows, but for interactions, which are read whole. Text is read twice, first
    to count its words and labels, by several processes.

    Parameters
    ----------
    path : path, list of paths
        Files, or patterns such as `part-*.tsv.gz`, all of one format: their rows follow one another. Of `npz` pairs the
        files of features, or folders.
    folder : path
        Folder to make, which must not exist. If the same conversion of text to it was interrupted, it goes on from
        there; what others have left is removed.
    threads : int
        Threads that parse xmc and libsvm text, processes that parse other text; by default one per core.
    progress : callable
        Is called with a line on the memory that is needed, before it is, and with others later.
    **options
        All others are those of `load`.

    Raises
    ------
    DataError
        Data that can't be read; the message names file, line and value.
    """
    if "embeddings" in layout:
        raise ConfigError("embeddings: dense features can't be converted; an .npy file is mapped as it is")
    for name in layout:
        check_name(name, LAYOUT_OPTIONS)
    if embeddings is not None:
        raise ConfigError("embeddings: can't be converted; a .npy file is mapped, and may be given beside the folder")
    given, say = Layout(**layout), progress or (lambda _: None)
    paths = expand(path)
    format = checked_format(paths[0], format, base, y, given, features=features, labels=labels, threads=threads)
    if len(paths) > 1 and (format not in ("xmc", "libsvm", "npz", *TEXT_ROWS) or y is not None):
        what = f"{format} data is converted from one file" if y is None else "y is the file of labels of one file"
        raise ConfigError(f"{what}, not from {len(paths)}")
    if format not in ("xmc", "libsvm", "npz", *TEXT_ROWS):
        write_dataset(
            load(paths[0], format=format, features=features, labels=labels, label_names=label_names, **layout), folder
        )
        return
    of, begun, notes = "", None, None
    if format in TEXT_ROWS:
        of = fingerprint(paths, format, given, vectorizer, label_names)
        begun = find_leftover(Path(folder), lambda path: can_go_on(path, of))
    with (
        new_folder(folder, begun, kept_with=NOTES) as partial,
        RowsFiles(partial, "x", begun is not None) as x_files,
        RowsFiles(partial, "y", begun is not None) as y_files,
        without_leftovers(partial, Path(folder)),
    ):
        if format in TEXT_ROWS:
            check_words(paths[0], format, vectorizer)
            notes = Progress(partial, of, x_files, y_files)
            try:
                dataset = convert_texts(
                    paths, lambda each: TEXT_ROWS[format](each, given, None), given, x_files, y_files, partial,
                    vectorizer=vectorizer, label_names=label_names, processes=processes_for(threads), say=say,
                    progress=notes,
                )  # fmt: skip
            except KeyboardInterrupt:
                if (partial / NOTES).exists():
                    say("interrupted: the same conversion goes on from here")
                raise
        elif format == "npz":
            dataset = convert_npz(paths, y, x_files, y_files, say)
        else:
            dataset = read_svm_text(
                paths, x_files, y_files, header=format == "xmc", base=base, features=features, labels=labels,
                threads=threads,
            )  # fmt: skip
        dataset = as_expected(dataset, features, labels, None, label_names)
        complete_folder(partial, dataset, x_files, y_files)
        if notes is not None:
            notes.forget()


def expand(path: Paths) -> list[str | Path]:
    """The files that are meant: patterns stand for those that match, in order of their names."""
    given = [path] if isinstance(path, (str, Path)) else list(path)
    files: list[str | Path] = []
    for each in given:
        if os.path.lexists(each) or not glob.has_magic(str(each)):
            files.append(each)
            continue
        found = sorted(glob.glob(str(each)))
        if not found:
            raise DataError(f"{each}: no file matches this")
        files += found
    if not files:
        raise ConfigError("path: expected at least one file")
    return files
