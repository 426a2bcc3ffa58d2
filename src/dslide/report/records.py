"""Reads files with a JSON object on each line, which may be damaged or of any length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dslide.errors import DataError
from dslide.util.json_files import open_plain, strict_json

LONGEST_LINE = 1 << 20  # bytes; a start record with all options has some 3,000
LARGEST = 1e18  # accepted as a number


class Record:
    """A JSON object, and its place in a file for error messages."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def number(self, key: str) -> float | None:
        """A number; None if it is null or missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
            raise self._unexpected(key, "a number")
        return float(value)

    def numbers(self, *keys: str) -> dict[str, float] | None:
        """Numbers by their keys; None if one of them is null or missing."""
        found = {key: value for key in keys if (value := self.number(key)) is not None}
        return found if len(found) == len(keys) else None

    def text(self, key: str) -> str:
        """A text; empty if it is missing."""
        value = self.values.get(key, "")
        if not isinstance(value, str):
            raise self._unexpected(key, "a text")
        return value

    def part(self, key: str) -> Record:
        """An object; empty if it is missing."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self._unexpected(key, "an object")
        return Record(value, f"{self.where}: {key}")

    def parts(self, key: str) -> list[Record]:
        """A list of objects; empty if it is missing."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._unexpected(key, "a list of objects")
        return [Record(item, f"{self.where}: {key}") for item in value]

    def row(self, key: str) -> list[float]:
        """A list of numbers; empty if it is missing."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self._unexpected(key, "a list of numbers")
        items = [Record({key: item}, self.where).number(key) for item in value]
        return [item for item in items if item is not None]

    def _unexpected(self, key: str, expected: str) -> DataError:
        value = self.values.get(key)
        shown = f"a number beyond {LARGEST:g}" if isinstance(value, int) and abs(value) > LARGEST else repr(value)
        return DataError(f"{self.where}: {key}: expected {expected}, not {shown[:80]}")


def records(path: Path) -> Iterator[Record]:
    """The objects of a file, one on each line. An incomplete last line is ignored, and so is a damaged line before a
    start record: the process that wrote it was killed."""
    problem: DataError | None = None
    with open_plain(path, DataError) as file:
        for number in itertools.count(1):
            line = _line(file, path, number)
            record = _record(line, f"{path}: line {number}")
            if problem is not None and (record is None or record.values.get("record") != "start"):
                raise problem
            problem = None
            if record is not None:
                yield record
            elif line.endswith(b"\n"):
                shown = repr(line[:40].decode("utf-8", "replace").strip())
                problem = DataError(f"{path}: line {number}: expected a JSON object, not {shown}")
            else:
                return


def _line(file: IO[bytes], path: Path, number: int) -> bytes:
    try:
        line = file.readline(LONGEST_LINE)
    except OSError as problem:
        raise DataError(f"{path}: can't be read: {problem.strerror}") from None
    if len(line) == LONGEST_LINE:
        raise DataError(f"{path}: line {number}: is longer than {LONGEST_LINE:,} bytes, expected a record of a run")
    return line


def _record(line: bytes, where: str) -> Record | None:
    try:
        value = strict_json(line)
    except (ValueError, RecursionError):
        return None
    return Record(value, where) if isinstance(value, dict) else None
