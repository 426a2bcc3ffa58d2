"""Parquet files as tables, a batch of rows at a time. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dslide.data.files import open_file
from dslide.data.formats.table import Columns
from dslide.errors import DataError, UserError

_MAGIC = b"PAR1"
_BATCH_ROWS = 4096
_BUFFER_BYTES = 1 << 20  # of a column, read at a time


def is_parquet(path: str | Path) -> bool:
    """Whether a file starts with the magic bytes of Parquet."""
    with open_file(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


class ParquetTable(Columns):
    """The columns of a Parquet file, which always have names."""

    unit, separator, has_header = "row", "", True
    names: list[str]

    def __init__(self, path: str | Path) -> None:
        self.path = path
        with _opened(path) as file:
            self.names = list(file.schema_arrow.names)
        self.width = len(self.names)

    def rows(self, skip_blank: bool, places: Collection[int]) -> Iterator[tuple[int, Sequence[str]]]:
        """Number, from 1 on, and cells as text; a missing value is an empty one."""
        for number, values in self.values(places):
            yield number, [_as_text(value) for value in values]

    def values(self, places: Collection[int]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Number and values of every row; None in the other columns than `places`."""
        if self.width == 0:
            return
        if len(set(self.names)) < self.width:
            name = next(name for name in self.names if self.names.count(name) > 1)
            raise DataError(f"{self.path}: has several columns {name!r}")
        used = [self.names[place] for place in sorted(places)]
        number = 0
        with _opened(self.path) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=used, use_threads=False):
                columns: Mapping[str, list[Any]] = {
                    name: _in_microseconds(batch.column(name)).to_pylist() for name in used
                }
                every = [columns.get(name, [None] * batch.num_rows) for name in self.names]
                for values in zip(*every, strict=True):
                    number += 1
                    yield number, values


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    """A pyarrow.parquet.ParquetFile; UserError without pyarrow, DataError if the file is damaged."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError(f"{path}: Parquet files need pyarrow: pip install 'dslide[parquet]'") from None
    try:
        with open_file(path) as raw, pq.ParquetFile(raw, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError, EOFError) as error:
        shown = str(error).splitlines() or ["it is damaged"]
        raise DataError(f"{path}: can't be read as Parquet: {shown[0]}") from None


def _in_microseconds(column: Any) -> Any:
    """Times of nanoseconds as those that Python has."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
