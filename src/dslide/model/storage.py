"""Weights and moments as they are stored in memory and in files: float32, or bf16, which takes half the space; and who
is notified before they change, or provides them when they are loaded.

numpy has no bf16. Arrays of uint16 stand for it, each number being the upper half of a float32.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from dslide.errors import ModelError
from dslide.util.arrays import Array, Floats, Ids

STORAGE: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "bf16": np.dtype(np.uint16)}


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


def widened(stored: Array) -> Floats:
    """The same numbers as float32; not a copy if they are that already."""
    if stored.dtype != STORAGE["bf16"]:
        return stored
    bits = np.empty(stored.shape, np.uint32)
    np.left_shift(stored, np.uint32(16), out=bits)
    return bits.view(np.float32)


def narrowed(numbers: Floats) -> Array:
    """The nearest bf16 of finite numbers, ties to even."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return np.asarray((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16, STORAGE["bf16"])


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
