"""Weights and moments as they are stored in memory and in files (float32, or bf16, which takes half the space), where
they are read from, and who is notified before they change.

numpy has no bf16. Arrays of uint16 stand for it, each number being the upper half of a float32.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dslide.errors import ModelError
from dslide.model.activations import Ids

Array = npt.NDArray[Any]

STORAGE: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "bf16": np.dtype(np.uint16)}


class ArraySource(Mapping[str, Array], abc.ABC):
    """Arrays by name that can be copied into memory the caller has already: they may be larger than what is free."""

    @abc.abstractmethod
    def copy_into(self, name: str, into: Array) -> None:
        """Fills `into` with the array of this name; ModelError if type or shape differ."""


class ChangeListener(Protocol):
    """Is notified before arrays that it contains change."""

    def __contains__(self, name: str) -> bool: ...

    def before_change(self, name: str, rows: Ids | None = None) -> None:
        """These rows of an array, or all of them, are about to change."""


def widened(stored: Array) -> npt.NDArray[np.float32]:
    """The same numbers as float32; not a copy if they are that already."""
    if stored.dtype != STORAGE["bf16"]:
        return stored
    bits = np.empty(stored.shape, np.uint32)
    np.left_shift(stored, np.uint32(16), out=bits)
    return bits.view(np.float32)


def checked(arrays: Mapping[str, Array], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The array of this name; ModelError if it is missing or not of this type and shape."""
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype != dtype:
        found = "missing" if array is None else _described(array.dtype, array.shape)
        raise ModelError(f"array {name} is {found}, expected {_described(dtype, shape)}")
    return array


def _described(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{'bf16' if dtype == STORAGE['bf16'] else dtype}{list(shape)}"
