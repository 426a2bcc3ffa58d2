"""Saved models: a folder with the network's arrays, its options, the names of labels and features, and the state that
resuming needs. `manifest.json`, written last, lists size and checksum of every other file.

Ranks that train together save together, each the arrays it owns. Each disk that they see gets a folder with the shards
of its ranks and all small files. Any number of ranks reads what any other number wrote.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dslide.checkpoint.manifest import (
    COMMON_FILES,
    CONFIG,
    FEATURES,
    FIELDS,
    LABEL_COUNTS,
    LABELS,
    LARGEST,
    MANIFEST,
    OPTIMIZER,
    PROGRESS,
    TOKENS,
    VECTORIZER,
    WEIGHTS,
    Entry,
    Manifest,
    check_file,
    is_model_file,
    read_json,
    read_names,
    read_number,
    shard_file,
    write_again,
    write_arrays,
    write_json,
)
from dslide.checkpoint.replace_folder import beside, replacement
from dslide.checkpoint.reshard import SavedArrays
from dslide.checkpoint.run_folder import newest
from dslide.checkpoint.tensor_file import Read, open_tensors
from dslide.comm import Communicator, solo
from dslide.config import Config
from dslide.data import TextVectorizer, TokenOptions
from dslide.data.layout import Layout
from dslide.errors import ConfigError, DataError, ModelError, raised_as
from dslide.model.sharding import WHOLE, Shard
from dslide.model.state_layout import is_parameter
from dslide.util.arrays import Array
from dslide.util.plain import is_plain_folder

MOST_ROWS = 2**62
# in config.json beside the options, with the smallest and the largest value
SIZES = {
    "features": (1, LARGEST),
    "dense_features": (0, LARGEST),
    "labels": (1, LARGEST),
    "rows": (0, MOST_ROWS),
    "base": (0, 1),
}
PROGRESS_NUMBERS = {"step": LARGEST, "epoch": LARGEST, "position": LARGEST, "samples": MOST_ROWS}  # largest values


@dataclass
class SavedModel:
    """What a model folder holds."""

    config: Config
    features: int
    labels: int
    state: Mapping[str, Array]  # as Network.state() gives it: with several ranks, what this one owns
    label_names: list[str] | None = None
    feature_names: list[str] | None = None
    vectorizer: dict[str, Any] | None = None  # as TextVectorizer.to_dict() gives it
    progress: dict[str, Any] = field(default_factory=dict)  # as Trainer.progress() gives it, and more
    label_counts: Array | None = None  # [labels] int64: occurrences in the training data, for PSP@k
    rows: int = 0  # of the training data
    base: int = 0  # the first index (0 or 1) in the files of the training data
    tokens: dict[str, Any] | None = None  # TokenOptions, if it was trained on a stream of words
    dense_features: int = 0  # of the features, the last ones, which every row has
    interactions: bool = False  # features and labels are the same items: those that a row has are not recommended
    layout: dict[str, Any] | None = None  # Layout of the file of the training data, as far as it was given
    estimator: dict[str, Any] | None = None  # how SlideClassifier encodes its labels


def model_folder(path: str | Path) -> Path:
    """The model's folder, given it or the folder of the run that made it: of a run, its newest checkpoint."""
    folder = newest(path) or Path(path)
    old = beside(folder, ".old")  # if a replacement was interrupted
    return old if not os.path.lexists(folder) and is_plain_folder(old, ModelError) else folder


def save_model(
    folder: str | Path, model: SavedModel, *, optimizer: bool = True, comm: Communicator | None = None
) -> None:
    """Writes a model folder, replacing a model that is there; if that fails, ModelError, and nothing has changed.
    Without `optimizer` the folder is smaller and training can't be resumed from it. With `comm` this is a collective:
    every rank calls it with its own `state` and the same of everything else; if a rank fails, all raise its error."""
    comm = comm or solo()
    with replacement(Path(folder), comm, _is_model) as work:
        own = work.together("arrays saved", lambda: write_shard(work.new, model, comm, optimizer))
        of_ranks = comm.gather_objects("checksums of saved arrays", own)
        shards = {name: entry for entries in of_ranks for name, entry in entries.items()}
        work.leaders("model saved", lambda: write_rest(work.new, model, comm, shards, optimizer))


def _is_model(folder: Path) -> bool:
    """Whether a folder holds a model, and nothing else that would be lost with it."""
    names = {path.name for path in folder.iterdir()}
    return MANIFEST in names and all(map(is_model_file, names))


def load_model(
    folder: str | Path, *, optimizer: bool = False, verify: bool = False, shard: Shard = WHOLE
) -> SavedModel:
    """Reads a model folder, or the newest checkpoint of a run; ModelError names the file that is missing or damaged.
    `state` holds the arrays of the shard, by default the whole network: memory-mapped if ranks with the same shares
    wrote the folder, else each assembled when it is read. `optimizer` includes what resuming needs; `verify` checks
    the checksums of the arrays too, which reads them once.

    Parameters
    ----------
    folder : path
        Folder of a run or of a model.
    optimizer : bool
        Include what resuming needs.
    verify : bool
        Check the checksums of the arrays too.
    shard : Shard
        The rank whose part to load, and the number of ranks.

    Returns
    -------
    SavedModel

    Raises
    ------
    ModelError
        A file is missing or damaged.
    """
    place = model_folder(folder)
    manifest, model = read_model(place, verify)
    saved = SavedArrays(place, manifest, model.config, model.features, model.labels)
    return replace(model, state=saved.read(shard, optimizer, verify))


def write_shard(
    folder: Path, model: SavedModel, comm: Communicator, optimizer: bool = True, read: Read = None
) -> dict[str, Entry]:
    """Writes the arrays that this rank owns; `read` is as in `stream_tensors`."""
    entries = {}
    for kind in (OPTIMIZER, WEIGHTS) if optimizer else (WEIGHTS,):
        name = shard_file(kind, comm.rank, comm.size)
        arrays = {array: model.state[array] for array in model.state if is_parameter(array) == (kind == WEIGHTS)}
        entries[name] = write_arrays(folder / name, arrays, read)
    return entries


def write_rest(
    folder: Path, model: SavedModel, comm: Communicator, entries: dict[str, Entry], optimizer: bool = True,
    before: dict[str, list[tuple[Entry, Path]]] | None = None,
) -> None:  # fmt: skip
    """Writes all but the shards' arrays, whose entries are given. `before`: files of earlier checkpoints, which are
    linked rather than written again; but not those of the last one, so that no damage is in both."""
    entries, before = dict(entries), {} if before is None else before
    options = model.config.to_dict() | {key: getattr(model, key) for key in (*SIZES, "interactions", "layout")}
    fields = {name: getattr(model, field) for name, field in FIELDS.items()}
    for name, content in {CONFIG: options, **fields, LABEL_COUNTS: model.label_counts}.items():
        if content is None or (name == PROGRESS and not optimizer):
            continue
        copies = [copy for copy in before.get(name, []) if copy[1].exists()]
        other = next((copy for copy in copies[-2::-1] if not os.path.samefile(copy[1], copies[-1][1])), None)
        if other is not None:
            entries[name] = other[0]
            write_again(folder / name, other[1])
        elif isinstance(content, np.ndarray):
            entries[name] = write_arrays(folder / name, {"label_counts": content})
        else:
            entries[name] = write_json(folder / name, content)
        if name != PROGRESS:
            before[name] = [*copies[-2:], (entries[name], folder / name)]
    Manifest(comm.size, entries, Shard.of(comm).shares).write(folder)


def read_model(folder: Path, verify: bool) -> tuple[Manifest, SavedModel]:
    """All of a model folder but its arrays. ModelError names the file that is missing or damaged."""
    manifest = Manifest.read(folder)
    files = manifest.files
    for name in COMMON_FILES:
        if name in files:
            check_file(folder / name, files[name], content=verify or name != LABEL_COUNTS)
    if CONFIG not in files:
        raise ModelError(f"{folder}: there is no {CONFIG}")
    options = read_json(folder / CONFIG, dict)
    values: dict[str, Any] = {key: read_number(folder / CONFIG, options, key, *SIZES[key]) for key in SIZES}
    values["interactions"] = interactions = options.get("interactions")
    if not isinstance(interactions, bool):
        raise ModelError(f"{folder / CONFIG}: interactions: expected true or false, not {interactions!r}")
    values["layout"] = options.get("layout")
    with raised_as(ModelError, folder / CONFIG, ConfigError, TypeError, DataError):
        Layout.from_dict(values["layout"] or {})
        config = Config.from_dict({name: value for name, value in options.items() if name not in values})
    if config.hidden == (-1,):  # is resolved before a network is made
        raise ModelError(f"{folder / CONFIG}: hidden: a saved network has layers of known sizes, not -1")
    if LABEL_COUNTS in files:
        values["label_counts"] = open_tensors(folder / LABEL_COUNTS).arrays.get("label_counts")
    names = {LABELS: values["labels"], FEATURES: values["features"]}
    for name, field_name in FIELDS.items():
        if name in files:
            path = folder / name
            values[field_name] = read_names(path, names[name]) if name in names else read_json(path, dict)
    model = SavedModel(config, state={}, **values)
    _check_model(folder, model)
    return manifest, model


def _check_model(folder: Path, model: SavedModel) -> None:
    """ModelError if parts of the model but its arrays, which may come from anyone, are invalid or contradictory."""
    if model.dense_features > model.features:
        raise ModelError(f"{folder / CONFIG}: dense_features: {model.dense_features} of {model.features} features")
    if model.interactions and model.features != model.labels:
        raise ModelError(f"{folder / CONFIG}: with interactions, features and labels must be as many")
    if model.vectorizer is not None:
        path = folder / VECTORIZER
        with raised_as(ModelError, f"{path}: damaged", DataError):
            words = len(TextVectorizer.from_dict(model.vectorizer).words)
        if words != (sparse := model.features - model.dense_features):
            raise ModelError(f"{path}: damaged: it has {words} words for {sparse} features")
    if model.tokens is not None:
        if model.label_names is None or model.feature_names != model.label_names:
            raise ModelError(f"{folder}: a model of words must have them in {LABELS} and the same in {FEATURES}")
        try:
            TokenOptions(**model.tokens)
        except (ConfigError, TypeError):
            raise ModelError(f"{folder / TOKENS}: damaged: not the options of a stream of words") from None
    counts = model.label_counts
    if counts is not None and counts.shape != (model.labels,):
        raise ModelError(f"{folder / LABEL_COUNTS}: counts of shape {counts.shape} for {model.labels} labels")
    if counts is not None and (counts.dtype != np.int64 or counts.min(initial=0) < 0):
        raise ModelError(f"{folder / LABEL_COUNTS}: damaged: expected counts of type int64, none below 0")
    for key, largest in PROGRESS_NUMBERS.items():
        if key in model.progress:
            read_number(folder / PROGRESS, model.progress, key, high=largest)
