"""Models to save: whole networks of random arrays, and what each rank of a job owns of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support.bf16 import stored
from support.inprocess import run_ranks

from dslide.checkpoint.saved_model import SavedModel, load_model, save_model
from dslide.comm import Communicator
from dslide.config import Config
from dslide.model.hash_parameters import TABLES
from dslide.model.sharding import WHOLE, Shard, neuron_axis
from dslide.util.arrays import padded

Array = npt.NDArray[Any]
MOMENTS = {"adam": ["_moment1", "_moment2"], "adagrad": ["_moment2"], "sgd": []}
FEATURES, LABELS = 11, 37
CONFIGS = {
    "dense": Config(hidden=(5,), optimizer="adam"),  # fewer neurons than ranks
    "sampled": Config(hidden=(18, 9), hidden_share=(0.5, 1.0), optimizer="adagrad"),
    "sampled last": Config(hidden=(16, 33), hidden_share=(1.0, 0.25), optimizer="sgd"),
    "bf16": Config(hidden=(18, 9), hidden_share=(0.5, 1.0), optimizer="adam", weights="bf16", moments="bf16"),
    "bf16 moments": Config(hidden=(5,), optimizer="adam", moments="bf16"),
}
ONE = CONFIGS["sampled"]  # where any will do


def padded_rows(array: Array) -> Array:
    """With rows as long as they are in memory; zeros beyond the width."""
    out = np.zeros((len(array), padded(array.shape[1])), array.dtype)
    out[:, : array.shape[1]] = array
    return out


def network_state(config: Config, features: int, labels: int, shard: Shard = WHOLE, seed: int = 0) -> dict[str, Array]:
    """The arrays of a rank, cut out of whole ones that depend on the seed only."""
    random = np.random.default_rng(seed)
    shares = [*(config.hidden_share or [1.0] * len(config.hidden))]
    widths = [features, *config.hidden, labels]
    state: dict[str, Array] = {}

    def keep(layer: int, name: str, whole: Array, sparse_input: bool, pad: bool = False) -> None:
        axis = neuron_axis(name, sparse_input)
        own = whole if axis is None else shard.part(whole, axis)
        state[f"layer{layer}.{name}"] = padded_rows(own) if pad else np.ascontiguousarray(own)

    for i, (inputs, neurons) in enumerate(pairwise(widths)):
        sparse_input = i == 0 or shares[i - 1] < 1
        rows, columns = (inputs, neurons) if sparse_input else (neurons, inputs)
        for suffix in ["", *MOMENTS[config.optimizer]]:
            storage = config.moments if suffix else config.weights
            numbers = stored(random.random((rows, columns), np.float32) + 1, storage)
            keep(i, f"weights{suffix}", numbers, sparse_input, pad=True)
            keep(i, f"bias{suffix}", random.random((neurons, 1), np.float32) + 1, sparse_input)
        keep(i, "weights_clock", random.integers(1, 1000, rows, np.uint32), sparse_input)
        keep(i, "bias_clock", random.integers(1, 1000, neurons, np.uint32), sparse_input)
        if i < len(shares) and shares[i] < 1:
            state[f"layer{i}.codes"] = shard.part(random.integers(0, 2, (TABLES, neurons), np.uint32), 1).copy()
            state[f"layer{i}.moved"] = shard.part(random.integers(0, 2, neurons, np.bool_)).copy()
    state["calibration"] = shard.part(random.standard_normal((labels, 7), np.float32)).copy()
    return state


def same_arrays(found: Any, expected: dict[str, Array]) -> None:
    """Equal in names, types, shapes and every bit."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        given = found[name]
        assert given.dtype == array.dtype, name
        np.testing.assert_array_equal(given, array, err_msg=name, strict=True)


def a_model(config: Config, features: int, labels: int, shard: Shard = WHOLE, seed: int = 0) -> SavedModel:
    """A bare model with the arrays of a rank."""
    state = network_state(config, features, labels, shard, seed)
    return SavedModel(config=config, features=features, labels=labels, state=state, progress={"step": seed})


def save(
    folder: Path, size: int, config: Config = ONE, seed: int = 0, shares: tuple[int, ...] = (), **options: Any
) -> None:  # fmt: skip
    """Saves such a model with that many ranks in one folder."""

    def work(comm: Communicator) -> None:
        comm.shares = shares
        model = a_model(config, FEATURES, LABELS, Shard.of(comm), seed)
        save_model(folder, model, comm=comm, **options)

    run_ranks(size, work)


def check(folder: Path, config: Config, shard: Shard = WHOLE, seed: int = 0) -> None:
    """The folder gives the shard's arrays."""
    loaded = load_model(folder, optimizer=True, verify=True, shard=shard)
    same_arrays(loaded.state, network_state(config, FEATURES, LABELS, shard, seed))
    assert loaded.progress == {"step": seed}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
