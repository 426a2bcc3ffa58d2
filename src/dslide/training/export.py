"""Exports of a trained network: a smaller model folder, or plain arrays for other programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dslide.checkpoint.saved_model import SavedModel, load_model, save_model
from dslide.comm import Communicator
from dslide.data import Features
from dslide.errors import ConfigError, DataError, known_to_all
from dslide.model.activations import Dense
from dslide.model.network import Network
from dslide.model.prediction import last_hidden, row_blocks
from dslide.model.storage import SCALE, STORAGE, narrowed, rounded_to_int8, widened
from dslide.training.inference import Model
from dslide.training.model_card import read_summary, write_card
from dslide.util.arrays import Array, Floats
from dslide.util.atomic import new_folder

Weights = Literal["float32", "bf16", "int8"]


def export_model(
    path: str | Path, out: str | Path, weights: Weights | None = None, optimizer: bool = False,
    comm: Communicator | None = None,
) -> None:  # fmt: skip
    """Writes the model of a folder, or the newest checkpoint of a run, to a new folder, which opens wherever a model
    opens; with a card in README.md, which has the metrics of the run. `weights`: their type, by default as they are;
    `optimizer`: with the state that resuming needs, which is only possible with the type that they have."""
    if os.path.lexists(out):
        raise DataError(f"{out}: exists already, give another name or remove it")
    saved = load_model(path, optimizer=optimizer, verify=True)
    if weights is not None and weights != saved.config.weights:
        if optimizer:
            raise ConfigError(f"optimizer: its state belongs to weights of {saved.config.weights}, not of {weights}")
        saved.state = _stored_as(saved, weights)
        saved.config = saved.config.replace(weights=weights)
    save_model(out, saved, optimizer=optimizer, comm=comm)
    if comm is None or comm.rank == 0:
        write_card(Path(out), saved, read_summary(path), Path(path).absolute().name)


def _stored_as(saved: SavedModel, weights: Weights) -> dict[str, Array]:
    """The arrays of a model with weights of another type."""
    state: dict[str, Array] = {}
    for name in saved.state:
        if not name.endswith(".weights"):
            if not name.endswith(f".weights{SCALE}"):
                state[name] = saved.state[name]
            continue
        numbers = widened(saved.state[name], saved.state.get(name + SCALE))
        if weights == "int8":
            state[name], state[name + SCALE] = rounded_to_int8(numbers)
        else:
            state[name] = numbers if weights == "float32" else narrowed(numbers)
        assert state[name].dtype == STORAGE[weights]
    return state


def export_arrays(model: Model, out: str | Path, x: Features | None = None) -> None:
    """Writes a new folder of .npy files: `vectors` (labels, hidden) and `biases` (labels) of the output layer, and of
    rows x `hidden` (rows, hidden), all float32. hidden @ vectors.T + biases are the logits of the network without its
    label prior, linear classifiers and calibration."""
    network = model.network
    if network.shard.size > 1:
        raise known_to_all(ConfigError("arrays: are exported by one process, not by several ranks"))
    output = network.output
    with new_folder(out) as folder:
        vectors = output.vectors(np.arange(output.neurons, dtype=np.int32))
        _save(folder, {"vectors": vectors, "biases": output.arrays["bias"][:, 0]})
        if x is not None:
            _save(folder, {"hidden": hidden_vectors(network, x)})


def hidden_vectors(network: Network, x: Features) -> Floats:
    """The input of the output layer for some rows, (rows, hidden)."""
    out = np.empty((len(x), network.output.inputs), np.float32)
    for begin, end in row_blocks(network, len(x)):
        h = last_hidden(network, x.part(begin, end))
        if isinstance(h, Dense):
            out[begin:end] = h.values[:, : out.shape[1]]
        else:
            out[begin:end] = 0
            out[begin + h.row_numbers(), h.indices] = h.values
    return out


def _save(folder: Path, arrays: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", np.ascontiguousarray(array, np.float32))
