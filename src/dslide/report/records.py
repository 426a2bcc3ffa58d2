"""Reads files with a JSON object on each line, which may be damaged or of any length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from dslide.errors import DataError
from dslide.util.json_files import strict_json
from dslide.util.plain import open_plain

LONGEST_LINE = 1 << 20  # bytes; a start record with all options has some 3,000
LARGEST = 1e18  # accepted as a number
T = TypeVar("T")


class Record:
    """A JSON object, and its place in a file for error messages. Missing texts, objects and lists are empty."""

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
        return self._get(key, str, "a text")

    def part(self, key: str) -> Record:
        """An object inside of this one."""
        return Record(self._get(key, dict, "an object"), f"{self.where}: {key}")

    def parts(self, key: str) -> list[Record]:
        """A list of objects."""
        items = self._get(key, list, "a list of objects")
        if not all(isinstance(item, dict) for item in items):
            raise self._unexpected(key, "a list of objects")
        return [Record(item, f"{self.where}: {key}") for item in items]

    def row(self, key: str) -> list[float]:
        """A list of numbers."""
        values = self._get(key, list, "a list of numbers")
        items = [Record({key: item}, self.where).number(key) for item in values]
        return [item for item in items if item is not None]

    def _get(self, key: str, kind: type[T], expected: str) -> T:
        value = self.values.get(key, kind())
        if not isinstance(value, kind):
            raise self._unexpected(key, expected)
        return value

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
            where = f"{path}: line {number}"
            try:
                line = file.readline(LONGEST_LINE)
            except OSError as error:
                raise DataError(f"{path}: can't be read: {error.strerror}") from None
            if len(line) == LONGEST_LINE:
                raise DataError(f"{where}: is longer than {LONGEST_LINE:,} bytes, expected a record of a run")
            try:
                value = strict_json(line)
            except (ValueError, RecursionError):
                value = None
            valid = isinstance(value, dict)
            if problem is not None and not (valid and value.get("record") == "start"):
                raise problem
            problem = None
            if valid:
                yield Record(value, where)
            elif line.endswith(b"\n"):
                shown = repr(line[:40].decode("utf-8", "replace").strip())
                problem = DataError(f"{where}: expected a JSON object, not {shown}")
            else:
                return
