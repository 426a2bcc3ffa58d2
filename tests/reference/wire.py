"""Slow, obvious versions of the functions in src/core/wire, with the same signatures."""

from __future__ import annotations

import struct

import numpy as np

FORMATS = {"float32": (0, 4, 0), "bf16": (1, 2, 0), "int8": (2, 1, 4)}  # number, bytes of a value, of a row's scale
HEADER = 12
SAVING = 8  # a sparse message is shorter by this part of a dense one


def bf16_bits(x: np.float32) -> int:
    """The upper half of a float32, rounded to nearest even."""
    bits = int(np.float32(x).view(np.uint32))
    upper, lower = bits >> 16, bits & 0xFFFF
    if np.isnan(x):
        return upper | 0x40
    if lower > 0x8000 or (lower == 0x8000 and upper % 2 == 1):
        upper += 1
    return upper


def scale_of(row: np.ndarray) -> np.float32:
    if not np.isfinite(row).all():
        return np.float32(np.nan)
    largest = np.abs(row).max(initial=np.float32(0))
    return np.float32(largest / np.float32(127)) if largest >= 2.0**-118 else np.float32(0)


def int8_value(x: np.float32, scale: np.float32) -> int:
    if np.isnan(scale):
        return 1
    return int(np.rint(x / scale)) if scale > 0 else 0


def encode_row(row: np.ndarray, format: str) -> tuple[bytes, list[bytes]]:
    """The row's scale, if it has one, and its values."""
    if format == "float32":
        return b"", [struct.pack("<f", x) for x in row]
    if format == "bf16":
        return b"", [struct.pack("<H", bf16_bits(x)) for x in row]
    scale = scale_of(row)
    return struct.pack("<f", scale), [struct.pack("<b", int8_value(x, scale)) for x in row]


def is_zero(value: bytes) -> bool:
    """Of either sign."""
    if len(value) == 1:
        return value == b"\0"
    return value[:-1].strip(b"\0") == b"" and value[-1] in (0x00, 0x80)


def wire_encode(x: np.ndarray, first: int, step: int, columns: int, format: str) -> bytes:
    rows = len(x)
    encoded = [encode_row(row[first::step][:columns], format) for row in x]
    scales = b"".join(scale for scale, _ in encoded)
    dense = b"".join(value for _, values in encoded for value in values)
    masks = b"".join(
        sum(1 << i for i, value in enumerate(values) if not is_zero(value)).to_bytes((columns + 7) // 8, "little")
        for _, values in encoded
    )
    sparse = masks + b"".join(value for _, values in encoded for value in values if not is_zero(value))
    full = HEADER + len(scales) + len(dense)
    shorter = HEADER + len(scales) + len(sparse) <= full - full // SAVING
    header = struct.pack("<2sBBII", b"DW", FORMATS[format][0], shorter, rows, columns)
    return header + scales + (sparse if shorter else dense)


def decode_value(value: bytes, scale: np.float32) -> np.float32:
    if len(value) == 4:
        return np.float32(struct.unpack("<f", value)[0])
    if len(value) == 2:
        return np.float32(struct.unpack("<f", b"\0\0" + value)[0])
    return np.float32(struct.unpack("<b", value)[0]) * scale


def wire_decode(message: bytes, out: np.ndarray, first: int, step: int, columns: int, add: bool) -> None:
    rows = len(out)
    if len(message) < HEADER:
        raise ValueError("too short")
    letters, number, sparse, has_rows, has_columns = struct.unpack_from("<2sBBII", message)
    sizes = {number: sizes for number, *sizes in FORMATS.values()}
    if letters != b"DW" or number not in sizes or sparse > 1 or (has_rows, has_columns) != (rows, columns):
        raise ValueError("not a message for this")
    value_bytes, scale_bytes = sizes[number]
    at = HEADER

    def take(count: int) -> bytes:
        nonlocal at
        if at + count > len(message):
            raise ValueError("truncated")
        at += count
        return bytes(message[at - count : at])

    scales = [np.float32(struct.unpack("<f", take(4))[0]) if scale_bytes else np.float32(1) for _ in range(rows)]
    mask_bytes = (columns + 7) // 8
    masks = [int.from_bytes(take(mask_bytes), "little") if sparse else (1 << columns) - 1 for _ in range(rows)]
    if any(mask >> columns for mask in masks):
        raise ValueError("mask too long")
    decoded = np.zeros((rows, columns), np.float32)
    for r in range(rows):
        for c in range(columns):
            value = take(value_bytes) if masks[r] >> c & 1 else bytes(value_bytes)
            decoded[r, c] = decode_value(value, scales[r])
    full = HEADER + rows * (scale_bytes + columns * value_bytes)
    if at != len(message) or (sparse and at > full - full // SAVING):
        raise ValueError("too long")
    if columns > 0:
        target = out[:, first : first + (columns - 1) * step + 1 : step]
        target[:] = target + decoded if add else decoded


def wire_size(rows: int, columns: int, format: str) -> int:
    _, value_bytes, scale_bytes = FORMATS[format]
    return HEADER + rows * (scale_bytes + columns * value_bytes)
