"""Removes labels from a saved model, or renames them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide.checkpoint.manifest import PROGRESS, Manifest
from dslide.checkpoint.saved_model import SavedModel, load_model, model_folder, save_model
from dslide.errors import DataError, ModelError
from dslide.model.label_prior import LINEAR, NEIGHBOUR, PREFIX, prior_arrays
from dslide.model.linear import only_rows
from dslide.model.neighbour_arrays import TYPES as NEIGHBOUR_TYPES
from dslide.model.neighbour_arrays import only_labels
from dslide.model.state_layout import CODES, MOVED, array_layouts
from dslide.util.arrays import Array
from dslide.util.csr import indptr_of

Kept = npt.NDArray[np.int64]  # numbers of the labels that stay


def relabel(
    model: str | Path, out: str | Path, *, remove: Iterable[str] = (), rename: Mapping[str, str] | None = None
) -> None:
    """Writes a model with fewer labels, or with other names of labels, to the folder `out`. `dslide relabel` in Python.

    Labels without names are known by their numbers, which become their names. What the model has learned of the others
    stays as it was, and training can go on from it (`start_from`).

    Parameters
    ----------
    model : path
        Folder of a run or of a model.
    out : path
        Folder to make.
    remove : names
        Labels to remove.
    rename : dict
        New names of labels, by the old ones.
    """
    if os.path.lexists(out):
        raise DataError(f"{out}: exists already, give another name or remove it")
    optimizer = PROGRESS in Manifest.read(model_folder(model)).files
    saved = load_model(model, optimizer=optimizer, verify=True)
    if saved.interactions or saved.tokens is not None:
        raise DataError(f"{model}: its labels are its features too, so they can't be removed or renamed")
    names = saved.label_names or [str(number) for number in range(saved.labels)]
    removed, renamed = set(remove), dict(rename or {})
    for name in (*removed, *renamed):
        if name not in set(names):
            raise DataError(f"{model}: there is no label {name!r} to be removed or renamed")
    kept = np.array([number for number, name in enumerate(names) if name not in removed], np.int64)
    names = [renamed.get(names[number], names[number]) for number in kept]
    if len(kept) == 0:
        raise DataError(f"{model}: no label would be left")
    if len(set(names)) < len(names):
        raise DataError(f"{model}: two labels would have the same name")
    made = replace(saved, labels=len(kept), state=_state(saved, kept), label_names=names)
    if saved.label_counts is not None:
        made.label_counts = np.ascontiguousarray(saved.label_counts[kept])
    if saved.estimator is not None:
        made.estimator = _classes(saved.estimator, names, bool(renamed))
    save_model(out, made, optimizer=optimizer)


def _state(saved: SavedModel, kept: Kept) -> dict[str, Array]:
    """The arrays, of these labels only. Hash tables begin anew."""
    state = dict(saved.state)
    if len(kept) == saved.labels:
        return state
    output = f"layer{len(saved.config.hidden)}."
    layouts = array_layouts(saved.config, saved.features, len(kept))
    for name, layout in layouts.items():
        of_labels = name.startswith(output) or "." not in name
        if name not in state or not of_labels or layout.axis is None:
            continue
        if name == output + CODES:
            state[name] = np.full(layout.shape(), _core.NO_BUCKET, layout.dtype)
        elif name == output + MOVED:
            state[name] = np.ones(layout.shape(), layout.dtype)
        else:
            state[name] = made = np.zeros(layout.shape(), layout.dtype)
            made[(slice(None),) * layout.axis + (slice(len(kept)),)] = np.take(saved.state[name], kept, layout.axis)
    return state | _prior(prior_arrays(state), kept, saved.labels)


def _prior(arrays: Mapping[str, Array], kept: Kept, labels: int) -> dict[str, Array]:
    if not arrays:
        return {}
    number = np.full(labels, -1, np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    neuron = number[arrays[PREFIX + "neuron"]]
    stays = neuron >= 0
    made = {**arrays, PREFIX + "begin": indptr_of(stays)[arrays[PREFIX + "begin"]], PREFIX + "neuron": neuron[stays]}
    for name in ("weight", "trained"):
        array = arrays[PREFIX + name]
        made[PREFIX + name] = array[stays] if len(array) else array
    for name in ("share", "rows"):
        made[PREFIX + name] = arrays[PREFIX + name][kept]
    linear = {name: arrays[PREFIX + LINEAR + name] for name in ("begin", "feature", "weight", "bias", "factor")}
    made |= {PREFIX + LINEAR + name: array for name, array in only_rows(linear, kept).items()}
    near = only_labels({name: arrays[PREFIX + NEIGHBOUR + name] for name in NEIGHBOUR_TYPES}, number)
    return made | {PREFIX + NEIGHBOUR + name: array for name, array in near.items()}


def _classes(estimator: Mapping[str, Any], names: list[str], renamed: bool) -> dict[str, Any]:
    """What the model keeps for SlideClassifier: classes of texts are as long as the longest."""
    kind = str(estimator.get("dtype", ""))
    if estimator.get("multilabel") or not renamed:
        return dict(estimator)
    if "U" not in kind and "O" not in kind:
        raise ModelError("its labels are classes of numbers, which can't be renamed")
    return {**estimator, "dtype": f"<U{max(map(len, names))}" if "U" in kind else kind}
