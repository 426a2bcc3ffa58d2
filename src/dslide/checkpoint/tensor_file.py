"""Named arrays in a file of the safetensors format: 8 bytes with the header's length, a JSON header, then the
arrays one after the other. Arrays are streamed out and memory-mapped in, not copied; a damaged file is refused."""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dslide.errors import ModelError, raised_as
from dslide.util.arrays import Array
from dslide.util.json_files import strict_json
from dslide.util.plain import open_plain

ALIGNMENT = 64  # bytes: where the data begins, so that mapped arrays suit vector instructions
HEADER_LIMIT = 1 << 20  # bytes: a header needs some hundred bytes per array; more is damage
BLOCK = 1 << 24  # bytes written at a time

# Arrays of uint16 are always bf16 (model/storage.py).
CODES = {
    "BOOL": "?", "U8": "<u1", "I8": "<i1", "BF16": "<u2", "I16": "<i2", "F16": "<f2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
DTYPES = {name: np.dtype(code) for name, code in CODES.items()}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Read = Callable[[str], Iterable[Array]] | None  # gives the content of an array by its name, flat, in pieces


def stream_tensors(write: Callable[[Any], object], arrays: Mapping[str, Array], read: Read = None) -> None:
    """Passes the bytes of a file of arrays to `write`, piece by piece; their content is that of `arrays` or `read`."""
    # Largest items first: every array is then aligned to its item size without gaps, which the format forbids.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        array = arrays[name]
        if array.dtype not in DTYPE_NAMES:
            raise TypeError(f"{name}: arrays of type {array.dtype} can't be saved")
        begin, end, dtype = end, end + array.nbytes, DTYPE_NAMES[array.dtype]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    write(struct.pack("<Q", len(text)) + text)
    for name in names:
        for piece in _pieces(arrays[name]) if read is None else read(name):
            write(piece.view(np.uint8).data)


def _pieces(array: Array) -> Iterator[Array]:
    """The array's content, flat, in pieces; copies if its rows are not contiguous."""
    if array.flags.c_contiguous:
        array = array.reshape(-1)
    rows = max(1, BLOCK // max(1, array.nbytes // max(1, len(array))))
    for begin in range(0, len(array), rows):
        yield np.ascontiguousarray(array[begin : begin + rows]).reshape(-1)


@dataclass(frozen=True)
class TensorFile:
    """A mapped file and its arrays, read-only views of it; they outlive the file's removal."""

    arrays: dict[str, Array]
    mapped: mmap.mmap

    def release(self) -> None:
        """Drops the pages that were read so far from memory; they are read from the file again when needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def copy_rows(into: Array, given: Array, release: Callable[[], None]) -> None:
    """Copies an array of a mapped file block by block, and calls `release` after each block."""
    rows = max(1, BLOCK // max(1, given.strides[0])) if given.ndim else 1
    for begin in range(0, len(given), rows):
        into[begin : begin + rows] = given[begin : begin + rows]
        release()


def open_tensors(path: str | Path) -> TensorFile:
    """Maps a file of arrays; ModelError if it is damaged."""
    with open_plain(path, ModelError) as file, raised_as(ModelError, f"{path}: can't be read", OSError):
        size = os.fstat(file.fileno()).st_size
        header, data_begin = _read_header(path, file.read(8 + HEADER_LIMIT), size)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {}
    data_end = 0
    for begin, end, name, dtype, shape in sorted(_entries(path, header)):
        if begin != data_end:
            raise ModelError(f"{path}: damaged: array {name!r} begins at byte {begin}, expected {data_end}")
        data_end = end
        if data_begin + end > size:
            raise ModelError(f"{path}: damaged: array {name!r} ends after the end of the file")
        array = np.frombuffer(mapped, DTYPES[dtype], math.prod(shape), data_begin + begin).reshape(shape)
        if not array.flags.aligned:  # a file of another writer
            array = array.copy()
            array.flags.writeable = False
        arrays[name] = array
    if data_begin + data_end != size:
        raise ModelError(f"{path}: damaged: {size - data_begin - data_end} bytes after the last array")
    return TensorFile(arrays, mapped)


def _read_header(path: str | Path, start: bytes, size: int) -> tuple[dict[str, Any], int]:
    """The parsed header and where the data begins."""
    if size < 8:
        raise ModelError(f"{path}: damaged: {size} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", start[:8])
    if length > HEADER_LIMIT or 8 + length > size:
        raise ModelError(f"{path}: damaged: a header of {length} bytes in a file of {size} bytes")
    try:
        header = strict_json(start[8 : 8 + length])
    except (ValueError, RecursionError):  # ValueError: also bad UTF-8
        raise ModelError(f"{path}: damaged: the header is not valid JSON") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path}: damaged: the header is not a JSON object")
    return header, 8 + length


def _entries(path: str | Path, header: dict[str, Any]) -> Iterator[tuple[int, int, str, str, tuple[int, ...]]]:
    """Begin, end, name, type and shape of each array, each checked by itself."""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        where = f"{path}: damaged: array {name!r}"
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ModelError(f"{where} lacks one of dtype, shape, data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise ModelError(f"{path}: array {name!r} has the type {dtype!r}; known are {', '.join(DTYPES)}")
        if not _whole_numbers(shape) or len(shape) > 32 or not _whole_numbers(offsets) or len(offsets) != 2:
            raise ModelError(f"{where} has no valid shape and offsets")
        begin, end = offsets
        # the shape of an empty array, too, must be one that numpy can represent
        if 0 in shape and math.prod(size or 1 for size in shape) * DTYPES[dtype].itemsize >= 1 << 62:
            raise ModelError(f"{where} can't have the shape {shape}")
        if math.prod(shape) * DTYPES[dtype].itemsize != end - begin:
            raise ModelError(f"{where} of shape {shape} can't be {end - begin} bytes of {dtype}")
        yield begin, end, name, dtype, tuple(shape)


def _whole_numbers(values: object) -> bool:
    """Whether it is a list of numbers that can be sizes."""
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in values)
