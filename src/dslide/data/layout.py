"""How lines of text files are divided into columns, and what the columns are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dslide.errors import ConfigError, DataError

SEPARATORS = {"tab": "\t", "comma": ",", "semicolon": ";", "blank": " "}  # by name
_TEXT, _ITEMS = ("tsv", "jsonl", "parquet"), ("interactions",)
USED_BY = {  # formats that each option is of use with
    "separator": ("tsv", *_ITEMS), "header": ("tsv", *_ITEMS), "label_separator": ("tsv", "parquet", "npy"),
    "label_column": _TEXT, "text_column": _TEXT,
    "user_column": _ITEMS, "item_column": _ITEMS, "weight_column": _ITEMS, "time_column": _ITEMS,
}  # fmt: skip

Column = str | int  # the name of a column, or its number, counted from 1
TextColumns = Column | Sequence[Column] | Mapping[Column, int]  # several, or with the times that their words count
MOST_WEIGHT = 1000  # of a column of text


@dataclass(frozen=True)
class Layout:
    """The columns of a file; what is None follows from the file. Columns are given by their names in the header, or by
    numbers from 1 on."""

    separator: str | None = None  # between columns: a text, or a name of SEPARATORS
    header: bool | None = None  # whether the first line has names of the columns
    label_separator: str | None = None  # between labels; None: blanks
    label_column: Column | None = None
    text_column: Column | None = None  # or several, as title:3,abstract
    user_column: Column | None = None
    item_column: Column | None = None
    weight_column: Column | None = None
    time_column: Column | None = None

    def __post_init__(self) -> None:
        for name in ("separator", "label_separator"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value or "\n" in value or '"' in value):
                raise ConfigError(f"{name}: expected a text such as ';', or {', '.join(SEPARATORS)}, not {value!r}")
            if value is not None:
                object.__setattr__(self, name, SEPARATORS.get(value, value))
        if self.header not in (None, True, False):
            raise ConfigError(f"header: expected true or false, not {self.header!r}")
        object.__setattr__(self, "text_column", text_option(self.text_column))
        for name, value in self.columns().items():
            if isinstance(value, str) and value.isascii() and value.isdigit():
                value = int(value)
                object.__setattr__(self, name, value)
            if not isinstance(value, (str, int)) or isinstance(value, bool) or value == "":
                raise ConfigError(f"{name}: expected the name or the number of a column, not {value!r}")
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"{name}: columns are counted from 1, not {value}")
        self.text_columns()

    def columns(self) -> dict[str, Column]:
        """The columns that are given."""
        return {name: value for name, value in self.to_dict().items() if name.endswith("_column")}

    def text_columns(self) -> list[tuple[Column, int]]:
        """The columns of text that are given, each with the number of times that its words count."""
        if not isinstance(self.text_column, str):
            return [] if self.text_column is None else [(self.text_column, 1)]
        found: list[tuple[Column, int]] = []
        for part in self.text_column.split(","):
            name, weight = re.fullmatch(r"(.*?)(?::(\d{1,9}))?", part.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
            column: Column = int(name) if name.isascii() and name.isdigit() else name
            if column in ("", 0) or column in [other for other, _ in found]:
                raise ConfigError(f"text_column: expected different columns, as title:3,abstract, not {part!r}")
            if not 1 <= int(weight or 1) <= MOST_WEIGHT:
                raise ConfigError(
                    f"text_column: the words of a column can count 1 to {MOST_WEIGHT} times, not {weight}"
                )
            found.append((column, int(weight or 1)))
        return found

    def over(self, other: Layout | None) -> Layout:
        """What is given here, and what the other has where this leaves it open."""
        return self if other is None else dataclasses.replace(other, **self.to_dict())

    def refuse_for(self, format: str) -> None:
        """ConfigError if something is given that has no use with a format."""
        for name in self.to_dict():
            if format not in USED_BY[name]:
                raise ConfigError(f"{name}: has no use with {format} data, only with {_listed(USED_BY[name])}")

    def to_dict(self) -> dict[str, Any]:
        """What is given, as plain values for JSON."""
        values = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in values if value is not None}

    @classmethod
    def from_dict(cls, values: Any) -> Layout:
        """The opposite of `to_dict`; DataError if it is none."""
        try:
            return cls(**values)
        except (TypeError, ConfigError) as error:
            raise DataError(f"not the layout of a file: {error}") from None


def _listed(formats: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(formats[:-1]), formats[-1]]))


def text_option(columns: TextColumns | None) -> Column | None:
    """Columns of text, with or without weights, as one option."""
    if not isinstance(columns, (list, tuple, dict)):
        return columns  # type: ignore[return-value]
    pairs = columns.items() if isinstance(columns, dict) else [(column, 1) for column in columns]
    for column, weight in pairs:
        if not isinstance(column, (str, int)) or type(weight) is not int or "," in str(column):
            raise ConfigError(f"text_column: expected columns, or a dict of these and whole numbers, not {columns!r}")
    return ",".join(f"{column}:{weight}" for column, weight in pairs)


LAYOUT_OPTIONS = tuple(field.name for field in dataclasses.fields(Layout))
