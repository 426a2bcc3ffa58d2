"""Weights and moments as they are kept in memory and in files: float32, or bf16, which takes half the room.

numpy has no bf16. Arrays of uint16 stand for it, each number being the upper half of a float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide.errors import ModelError

Array = npt.NDArray[Any]

STORAGE: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "bf16": np.dtype(np.uint16)}


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
