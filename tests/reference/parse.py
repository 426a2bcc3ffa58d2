"""Reference parser of text rows."""

from __future__ import annotations

import re
import struct
from fractions import Fraction
from typing import NamedTuple

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class SlowRows(NamedTuple):
    x: list[dict[int, float]]
    y: list[dict[int, float]]
    base: int


def nearest_float32(text: str) -> float:
    """The float32 nearest to a decimal number, ties to even, exactly; 0 below the normal range."""
    assert NUMBER.fullmatch(text)
    exact = Fraction(text if not text.endswith(".") else text + "0")
    if exact == 0:
        return 0.0
    size, exponent = abs(exact), 0
    while size >= 2:
        size, exponent = size / 2, exponent + 1
    while size < 1:
        size, exponent = size * 2, exponent - 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)  # between neighbouring floats
    rounded = round(abs(exact) / unit) * unit  # Fraction rounds ties to even
    value = struct.unpack("<f", struct.pack("<f", float(rounded)))[0]
    assert Fraction(value) == rounded
    return normal_or_zero(value if exact > 0 else -value)


def normal_or_zero(value: float) -> float:
    return value if abs(value) >= 2.0**-126 else 0.0


def slow_parse(text: str, header: bool) -> SlowRows:
    """Rows as dicts of index to value, indices from 0. Only for good input."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines[-1] == "":
        lines.pop()
    size = list(map(int, lines.pop(0).split())) if header else []
    if header:
        lines = lines[: size[0]]
    else:
        lines = [line.split("#")[0] for line in lines if line.split() == [] or line.split()[0][0] != "#"]
        while lines and not lines[-1].strip():
            lines.pop()
    x, y = [], []
    for line in lines:
        words = line.split()
        labels = words.pop(0).split(",") if line[:1] not in ("", " ", "\t") else []
        y.append({index: weight for index, weight in _summed(labels).items() if weight != 0})
        x.append(_summed(words))
    indices = {index for rows in (x, y) for row in rows for index in row}
    if header:
        beyond = any(size[1] in row for row in x) or any(size[2] in row for row in y)
        base = int(beyond and 0 not in indices)
    else:
        base = int(bool(indices) and 0 not in indices)
    shifted = [[{i - base: v for i, v in row.items()} for row in rows] for rows in (x, y)]
    return SlowRows(shifted[0], shifted[1], base)


def _summed(words: list[str]) -> dict[int, float]:
    row: dict[int, float] = {}
    for word in words:
        index, _, value = word.partition(":")
        total = row.get(int(index), 0.0) + (nearest_float32(value) if value else 1.0)
        row[int(index)] = normal_or_zero(struct.unpack("<f", struct.pack("<f", total))[0])
    return row
