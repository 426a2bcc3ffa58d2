"""Weights and moments as they are stored in memory and in files: float32, or bf16, which takes half the space, or, for
prediction only, int8 with a scale for each row; and who is notified before they change, or provides them when they are
loaded.

numpy has no bf16. Arrays of uint16 stand for it, each number being the upper half of a float32.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from dslide.errors import ModelError
from dslide.util.arrays import Array, Floats, Ids

STORAGE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32), "bf16": np.dtype(np.uint16), "int8": np.dtype(np.int8),
}  # fmt: skip
SCALE = "_scale"  # after the name of an array of int8: of the factors of its rows, (rows, 1) float32
BLOCK_ROWS = 1 << 14  # rounded to int8 at a time


class ChangeListener(Protocol):
    """Is notified before arrays of a network change, so that it can copy what it still needs."""

    def __contains__(self, name: str) -> bool:
        """Whether it wants to hear of this array."""

    def before_change(self, name: str, rows: Ids | None = None) -> None:
        """These rows of an array, in any order, or all of them, are about to change."""


class ArraySource(Mapping[str, Array], abc.ABC):
    """Arrays that can be copied into place without another copy in memory."""

    @abc.abstractmethod
    def copy_into(self, name: str, into: Array) -> None:
        """Fills an array with the one of this name; ModelError if it has another type or shape."""


def widened(stored: Array, scale: Array | None = None) -> Floats:
    """The same numbers as float32; not a copy if they are that already. `scale`: the factors of int8."""
    if scale is not None:
        return np.asarray(stored * scale, np.float32)
    if stored.dtype != STORAGE["bf16"]:
        return stored
    bits = np.empty(stored.shape, np.uint32)
    np.left_shift(stored, np.uint32(16), out=bits)
    return bits.view(np.float32)


def narrowed(numbers: Floats) -> Array:
    """The nearest bf16 of finite numbers, ties to even."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return np.asarray((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16, STORAGE["bf16"])


def rounded_to_int8(numbers: Array) -> tuple[Array, Floats]:
    """The rows of a matrix as int8, and the factors that give the numbers back, (rows, 1): with the largest number of a
    row as 127, each is off by half a step at most."""
    stored, scale = np.empty(numbers.shape, STORAGE["int8"]), np.empty((len(numbers), 1), np.float32)
    for begin in range(0, len(numbers), BLOCK_ROWS):
        rows = slice(begin, begin + BLOCK_ROWS)
        block = widened(numbers[rows])
        largest = np.abs(block).max(axis=1, keepdims=True, initial=0)
        scale[rows] = np.where(largest > 0, largest, 1) / 127
        stored[rows] = np.clip(np.rint(block / scale[rows]), -127, 127)
    return stored, scale


def checked(arrays: Mapping[str, Array], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The array of this name; ModelError if it is missing or has another type or shape."""
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype != dtype:
        found = "missing" if array is None else _described(array.dtype, array.shape)
        raise ModelError(f"array {name} is {found}, expected {_described(dtype, shape)}")
    return array


def copy_array(arrays: Mapping[str, Array], name: str, into: Array) -> None:
    """Fills an array with the one of this name; ModelError if that is missing or has another type or shape."""
    if isinstance(arrays, ArraySource):
        arrays.copy_into(name, into)
    else:
        into[...] = checked(arrays, name, into.dtype, into.shape)


def _described(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{'bf16' if dtype == STORAGE['bf16'] else dtype}{list(shape)}"
