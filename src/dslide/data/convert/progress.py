"""How far a conversion of text has come, noted in its unfinished folder: the same conversion goes on from there after
it was interrupted. Pieces of the files are the same each time, and so are rows that are made of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dslide.data.formats.folder import RowsFiles
from dslide.data.layout import Layout
from dslide.data.text import TextVectorizer
from dslide.errors import DataError
from dslide.util.json_files import read_plain_json

NOTES, COUNTS, NEW = "progress.json", "counts.json", "progress.json.new"
PIECES = 32  # that are written between two notes


def fingerprint(
    paths: Sequence[str | Path], format: str, layout: Layout, vectorizer: TextVectorizer | None,
    label_names: Sequence[str] | None,
) -> str:  # fmt: skip
    """Of a conversion: its files, by their sizes and times, and its options; empty if a file can't be found."""
    files: list[Any] = []
    for path in paths:
        try:
            about = Path(path).stat()
        except OSError:  # reading it says what is wrong
            return ""
        files.append([str(Path(path).absolute()), about.st_size, about.st_mtime_ns])
    texts = (vectorizer or TextVectorizer()).to_dict()
    names = None if label_names is None else list(label_names)
    return hashlib.blake2b(json.dumps([files, format, layout.to_dict(), texts, names]).encode()).hexdigest()


def can_go_on(folder: Path, of: str) -> bool:
    """Whether an unfinished folder is of this conversion, and has all that its notes tell."""
    try:
        notes = read_plain_json(folder / NOTES, DataError)
        return bool(notes["of"] == of) and all(RowsFiles.holds(folder, name, notes[name]) for name in "xy")
    except (DataError, KeyError, TypeError, OSError):
        return False


@dataclass(frozen=True)
class Earlier:
    """What the first pass of an earlier start has found."""

    rows: int
    names: list[str]  # of labels
    words: dict[str, Any]  # of a vectorizer

    def fill(self, vectorizer: TextVectorizer) -> None:
        """Gives the words to a vectorizer of the same options."""
        found = TextVectorizer.from_dict(self.words)
        vectorizer.words, vectorizer.df, vectorizer.rows = found.words, found.df, found.rows


class Progress:
    """The notes of one conversion, which writes to `x` and `y` in `folder`."""

    def __init__(self, folder: Path, of: str, x: RowsFiles, y: RowsFiles) -> None:
        self._folder, self._of, self._files = folder, of, {"x": x, "y": y}
        self.pieces = 0  # that are written
        self.earlier: Earlier | None = None
        if (folder / NOTES).exists():
            self.earlier = Earlier(**read_plain_json(folder / COUNTS, DataError))
            notes = read_plain_json(folder / NOTES, DataError)
            self.pieces = notes["pieces"]
            for name, files in self._files.items():
                files.go_on(notes[name])

    def counted(self, rows: int, names: list[str], vectorizer: TextVectorizer) -> None:
        """Notes the end of the first pass."""
        with open(self._folder / COUNTS, "w", encoding="utf-8") as file:
            json.dump(vars(Earlier(rows, names, vectorizer.to_dict())), file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        self._note()

    def wrote_piece(self) -> None:
        """Notes from time to time how many pieces are written."""
        self.pieces += 1
        if self.pieces % PIECES == 0:
            self._note()

    def forget(self) -> None:
        """Removes the notes: all is written."""
        for name in (NOTES, COUNTS, NEW):
            (self._folder / name).unlink(missing_ok=True)

    def _note(self) -> None:
        notes = {"of": self._of, "pieces": self.pieces}
        notes |= {name: files.so_far() for name, files in self._files.items()}
        (self._folder / NEW).write_text(json.dumps(notes), encoding="utf-8")
        (self._folder / NEW).replace(self._folder / NOTES)
