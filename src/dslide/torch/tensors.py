"""Tensors of PyTorch as arrays of the core, and back: hidden vectors, and arrays of a state."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dslide.errors import DataError
from dslide.model.cell_arrays import PREDICTION, RECENT, TRAINING
from dslide.model.storage import checked
from dslide.util.arrays import Array, Floats, aligned_zeros, padded


def check_vectors(h: Any, width: int) -> None:
    """DataError if these are no hidden vectors; their numbers are not looked at."""
    if not isinstance(h, torch.Tensor):
        raise DataError(f"h: expected a tensor (rows, {width}), not {type(h).__name__}")
    if h.dim() != 2 or h.shape[1] != width:
        raise DataError(f"h: expected the shape (rows, {width}), not {tuple(h.shape)}")
    if not h.is_floating_point():
        raise DataError(f"h: expected floating-point numbers, not {h.dtype}")


def vectors(h: torch.Tensor) -> Floats:
    """Hidden vectors as the core takes them, (rows, padded width); the tensor's own memory if it fits. DataError if a
    number is not finite."""
    given: Floats = h.detach().to("cpu", torch.float32).contiguous().numpy()
    finite = np.isfinite(given).all(axis=1)
    if not finite.all():
        raise DataError(f"h: row {int(np.argmin(finite))} has a number that is not finite")
    if given.shape[1] == padded(given.shape[1]):
        return given
    x = aligned_zeros(len(given), padded(given.shape[1]))
    x[:, : given.shape[1]] = given
    return x


def as_tensor(array: Array) -> torch.Tensor:
    """A copy; types that PyTorch supports only in part as signed ones of their size."""
    signed = {"uint16": np.int16, "uint32": np.int32}.get(array.dtype.name)
    return torch.from_numpy(np.array(array if signed is None else array.view(signed)))


def as_arrays(tensors: dict[str, torch.Tensor], like: dict[str, Array]) -> dict[str, Array]:
    """The opposite of `as_tensor`, for all of these arrays. ModelError if one is missing or of another shape."""
    found = {}
    for name, own in like.items():
        given = tensors.get(name)
        array = None if given is None else given.detach().cpu().numpy()
        if array is not None and array.dtype.itemsize == own.dtype.itemsize:
            array = array.view(own.dtype)
        array = checked({} if array is None else {name: array}, name, own.dtype, own.shape)
        # What is not of a layer is used as it is, and changes in training.
        found[name] = np.array(array) if name.startswith((TRAINING, PREDICTION, RECENT)) else array
    return found
