"""Text rows `label,label:weight feature:value feature ...`: XMLRepository files (with a header) and
multi-label libsvm files (without). Parsed block by block: a file larger than memory can be converted."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from dslide import _core
from dslide.data.dataset import Dataset
from dslide.data.files import is_compressed, line_blocks, quoted, source_of
from dslide.data.rows import MAX_COLUMNS, RowsBuilder, SparseRows
from dslide.errors import DataError
from dslide.util.arrays import Floats, Ids, Offsets

CHUNK_BYTES = 1 << 18  # parsed by a thread at a time
_BLANK_ROWS = 1 << 20  # added at a time

Base = Literal["auto", 0, 1]

_FAULTS = {
    "label": "{text} is not a label, expected a whole number or number:weight",
    "label_range": "label {text} is out of range, expected {labels}",
    "label_weight": "label {text} has a negative weight",
    "feature": "{text} is not a feature, expected a whole number or number:value",
    "feature_range": "feature {text} is out of range, expected {features}",
    "value": "{text} has a value that is not a number",
    "not_finite": "{text} has a value that is not a finite 32-bit number",
    "sum_not_finite": "the values of an index that is there several times have a sum that is not finite",
}


class Sink(Protocol):
    """Collects rows, in memory (`RowsBuilder`) or on disk (`RowsFiles`)."""

    def append(self, indptr: Offsets, indices: Ids, values: Floats) -> None: ...

    def finish(self, rows: int, columns: int, base: int) -> SparseRows: ...


@dataclass
class _Kind:
    """Features or labels: how many there may be, and the range of indices found, as written in the file."""

    name: str
    declared: int | None
    base: Base
    min: int = MAX_COLUMNS + 1
    max: int = -1
    max_place: str = ""  # of the first occurrence of the largest index

    @property
    def limits(self) -> tuple[int, int]:
        """The range of allowed indices, end excluded."""
        count = MAX_COLUMNS if self.declared is None else self.declared
        return (1, count + 1) if self.base == 1 else (0, count if self.base == 0 else count + 1)

    @property
    def expected(self) -> str:
        low, end = self.limits
        return f"0 to {end - 2} (or 1 to {end - 1})" if self.base == "auto" else f"{low} to {end - 1}"

    def see(self, seen: tuple[int, int, int, int], path: str | Path, first_line: int) -> None:
        low, _, high, high_line = seen
        self.min = min(self.min, low)
        if high > self.max:
            self.max, self.max_place = high, f"{path}, line {first_line + high_line}"

    def count(self, base: int) -> int:
        """The number of columns; a declared one wins over the largest index."""
        return max(self.max + 1 - base, 0) if self.declared is None else self.declared


def read_svm_text(
    path: str | Path | Sequence[str | Path], x: Sink | None = None, y: Sink | None = None, *, header: bool,
    base: Base = "auto", features: int | None = None, labels: int | None = None, threads: int | None = None,
) -> Dataset:  # fmt: skip
    """The rows of a file, or of several one after another, by default in memory. Blank lines at the end of a file count
    if its header says so."""
    paths = [path] if isinstance(path, (str, Path)) else path
    x, y = x or RowsBuilder(), y or RowsBuilder()
    x_kind, y_kind = _Kind("feature", features, base), _Kind("label", labels, base)
    rows = sum(_read_file(each, x, y, x_kind, y_kind, header, threads) for each in paths)
    found = _find_base(x_kind, y_kind, header) if base == "auto" else base
    for kind in (x_kind, y_kind):
        kind.base = found
        if kind.max >= kind.limits[1]:
            raise DataError(f"{kind.max_place}: {kind.name} {kind.max} is out of range, expected {kind.expected}")
    x_rows, y_rows = x.finish(rows, x_kind.count(found), found), y.finish(rows, y_kind.count(found), found)
    return Dataset(x_rows, y_rows, source=source_of(paths), base=found)


def _read_file(
    path: str | Path, x: Sink, y: Sink, x_kind: _Kind, y_kind: _Kind, header: bool, threads: int | None
) -> int:
    """Adds the rows of a file; returns how many there are."""
    promised: int | None = None
    before = x_kind.declared, y_kind.declared  # given, or by the header of an earlier file
    rows = blank_end = 0  # blank rows are added once it is known that they are rows
    for line, block in line_blocks(path):
        if header and promised is None:
            first, _, block = block.partition(b"\n")
            promised, x_kind.declared, y_kind.declared = _read_header(path, first)
            for kind, given in zip((x_kind, y_kind), before, strict=True):
                if given is not None and kind.declared != given:
                    raise DataError(f"{path}, line 1: has {kind.declared} {kind.name}s, but {given} are expected")
            line += 1
        parsed = _core.parse_rows(
            block, x_kind.limits, y_kind.limits, not header, chunk_bytes=CHUNK_BYTES, threads=threads or 0
        )
        if parsed["fault"] is not None:
            fault, fault_line, text = parsed["fault"]
            message = _FAULTS[fault].format(text=quoted(text), features=x_kind.expected, labels=y_kind.expected)
            raise DataError(f"{path}, line {line + fault_line}: {message}")
        x_kind.see(parsed["x_seen"], path, line)
        y_kind.see(parsed["y_seen"], path, line)
        rows += parsed["rows"]
        if parsed["blank_end"] == parsed["rows"]:
            blank_end += parsed["rows"]
        else:
            for sink, name in ((x, "x"), (y, "y")):
                _append_blank(sink, blank_end)
                indptr, indices, values = parsed[name]
                sink.append(indptr[: len(indptr) - parsed["blank_end"]], indices, values)
            blank_end = parsed["blank_end"]
        if promised is not None and rows - blank_end > promised:
            raise DataError(f"{path}, line {promised + 2}: more rows than the {promised} that line 1 promises")
    if promised is not None and rows < promised:
        raise DataError(f"{path}: line 1 promises {promised} rows, but there are {rows}")
    kept = promised if promised is not None else rows - blank_end
    if kept == 0:
        raise DataError(f"{path}: there are no rows")
    for sink in (x, y):
        _append_blank(sink, kept - (rows - blank_end))
    return kept


def _append_blank(sink: Sink, rows: int) -> None:
    for begin in range(0, rows, _BLANK_ROWS):
        ends = np.zeros(min(_BLANK_ROWS, rows - begin) + 1, np.int64)
        sink.append(ends, np.zeros(0, np.int32), np.zeros(0, np.float32))


def _find_base(x: _Kind, y: _Kind, header: bool) -> Literal[0, 1]:
    """0 if that occurs or no index at all; else, with a header, 1 only if an index equals the number of columns."""
    if not 0 < min(x.min, y.min) <= MAX_COLUMNS:
        return 0
    return 1 if not header or x.max == x.declared or y.max == y.declared else 0


def _read_header(path: str | Path, line: bytes) -> tuple[int, int, int]:
    if not looks_like_header(line):
        raise DataError(f"{path}, line 1: expected three numbers (rows features labels), found {quoted(line.strip())}")
    rows, features, labels = map(int, line.split())
    for what, number in (("rows", rows), ("features", features), ("labels", labels)):
        if not 1 <= number <= MAX_COLUMNS:
            raise DataError(f"{path}, line 1: the number of {what} must be 1 to {MAX_COLUMNS}, not {number}")
    if not is_compressed(path) and rows > (size := os.path.getsize(path)):
        raise DataError(f"{path}, line 1: promises {rows} rows, more than a file of {size} bytes can hold")
    return rows, features, labels


def looks_like_header(line: bytes) -> bool:
    """Whether a first line has the form `rows features labels`."""
    return len(line) < 1000 and re.fullmatch(rb"[ \t]*\d+[ \t]+\d+[ \t]+\d+[ \t]*\r?\n?", line) is not None


def looks_like_row(line: bytes) -> bool:
    """Whether a line starts like a row of libsvm text (perhaps with a bad number)."""
    words = line.split(b"#")[0].split()[:2]
    return all(re.fullmatch(rb"[-+0-9.,:eE]+|[0-9]+:\S*", word) for word in words)
