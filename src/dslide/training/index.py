"""Makes the index of approximate prediction of a saved model, and saves it there."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dslide.checkpoint.manifest import PROGRESS, Manifest
from dslide.checkpoint.run_folder import newest
from dslide.checkpoint.saved_model import load_model, model_folder, save_model
from dslide.comm import solo
from dslide.errors import DataError
from dslide.model.cell_arrays import PREDICTION, SAMPLE
from dslide.model.cells import CellStats
from dslide.model.defaults import FULL_BELOW
from dslide.training.export import hidden_vectors
from dslide.training.folders import lock_folder
from dslide.training.inference import Model
from dslide.training.reading import Source
from dslide.util.arrays import Floats, aligned_zeros, padded


def make_index(path: str | Path, rows: Source | None = None, **options: Any) -> CellStats:
    """Makes the cells in which approximate prediction looks labels up, of the rows that the model was trained on last,
    or of `rows`, and puts them into the model folder, or the newest checkpoint of the run. `options`: of reading
    files."""
    with ExitStack() as held:
        if newest(path) is not None:
            held.callback(lock_folder(Path(path), None).release)
        folder = model_folder(path)
        optimizer = PROGRESS in Manifest.read(folder).files
        saved = load_model(folder, optimizer=optimizer, verify=True)
        model = Model.of(saved, solo())
        index, recent = model.network.index, model.network.recent
        if index is None or recent is None:
            raise DataError(
                f"{path}: needs no saved index: up to {FULL_BELOW:,} labels are all scored, and hash tables, which "
                "networks with output = lsh have, are made when they are first used"
            )
        if rows is None and len(recent.rows) == 0:
            raise DataError(f"{path}: was not trained on rows of its own; give some (--rows DATA)")
        index.forget()
        index.build(recent.rows if rows is None else _sample(model, rows, options))
        arrays = {PREDICTION + name: array for name, array in index.state.items()}
        save_model(folder, replace(saved, state={**saved.state, **arrays}), optimizer=optimizer)
        assert index.stats is not None
        return index.stats


def _sample(model: Model, rows: Source, options: dict[str, Any]) -> Floats:
    """Hidden vectors of some rows at even distances, (rows, padded inputs)."""
    data = model.read(rows, **options)
    chosen = np.unique(np.linspace(0, len(data) - 1, SAMPLE).astype(np.int64))
    found = hidden_vectors(model.network, data.rows(0, len(data))[0].take(chosen))
    sample: Floats = aligned_zeros(len(found), padded(found.shape[1]))
    sample[:, : found.shape[1]] = found
    return sample
