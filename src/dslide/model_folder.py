"""Saved models: a folder with the network's arrays, its options, the names of labels and features, and what
training needs to go on. `manifest.json`, written last, lists size and checksum of every other file.

A folder is written beside its place as NAME.new and renamed when it is complete; a model that was there is
kept as NAME.old until then. Whatever moment a crash picks, one complete model is left, and loading finds it.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .config import Config
from .errors import ConfigError, ModelError
from .tensors import Array, read_tensors, stream_tensors

FORMAT = 1  # raised when older versions of dslide can't read the folder any more
MANIFEST = "manifest.json"
WEIGHTS, OPTIMIZER, LABEL_COUNTS = "weights.safetensors", "optimizer.safetensors", "label_counts.safetensors"
TENSOR_FILES = (WEIGHTS, OPTIMIZER, LABEL_COUNTS)
CONFIG, LABELS, FEATURES = "config.json", "labels.json", "features.json"
VECTORIZER, PROGRESS, ESTIMATOR = "vectorizer.json", "progress.json", "estimator.json"
FILES = (CONFIG, WEIGHTS, OPTIMIZER, LABEL_COUNTS, LABELS, FEATURES, VECTORIZER, PROGRESS, ESTIMATOR)
READ_SIZE = 1 << 20  # bytes
SIZES = ("features", "labels", "rows", "base")  # kept in config.json beside the options


@dataclass
class SavedModel:
    """What a model folder holds."""

    config: Config
    features: int
    labels: int
    state: Mapping[str, Array]  # as Network.state() gives it
    label_names: list[str] | None = None
    feature_names: list[str] | None = None
    vectorizer: dict[str, Any] | None = None  # as TextVectorizer.to_dict() gives it
    progress: dict[str, Any] = field(default_factory=dict)  # as Trainer.progress() gives it, and more
    label_counts: Array | None = None  # [labels] int64: occurrences in the training data, for PSP@k
    rows: int = 0  # of the training data
    base: int = 0  # what indices counted from in the files of the training data
    estimator: dict[str, Any] | None = None  # what SlideClassifier knows of its labels


def model_folder(path: str | Path) -> Path:
    """The model's folder, given it or the folder of the run that made it."""
    inner = Path(path) / "model"
    return inner if inner.exists() or _beside(inner, ".old").exists() else Path(path)


def save_model(folder: str | Path, model: SavedModel, *, optimizer: bool = True) -> None:
    """Writes a model folder in place of the model that is there; ModelError, nothing changed, if it fails.

    Without `optimizer` the folder is smaller and training can't go on from it.
    """
    folder = Path(folder)
    new, old = _beside(folder, ".new"), _beside(folder, ".old")
    try:
        _recover(folder)
        if folder.exists() and not (folder / MANIFEST).is_file():
            raise ModelError(f"{folder}: exists and is not a model folder, so it is not replaced")
        if new.exists():
            shutil.rmtree(new)  # what a crash left
        new.mkdir(parents=True)
        try:
            _write_files(new, model, optimizer)
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
            _sync_folder(folder.parent)
        except BaseException:  # also Ctrl-C: nothing half-written stays
            shutil.rmtree(new, ignore_errors=True)
            _recover(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise ModelError(f"{folder}: the model can't be saved: {error.strerror or error}") from None


def load_model(folder: str | Path, *, optimizer: bool = False, verify: bool = False) -> SavedModel:
    """Reads a model folder; arrays are mapped. ModelError names the file that is missing or damaged.

    With `optimizer` the state holds what going on with training needs. With `verify` the checksums of the
    arrays are checked too, which reads them once; those of small files always are.
    """
    folder = Path(folder)
    if not folder.exists() and _beside(folder, ".old").is_dir():
        folder = _beside(folder, ".old")
    files = _read_manifest(folder)
    for name, entry in files.items():
        if name not in TENSOR_FILES or verify:
            _check_file(folder / name, entry)
        else:
            _check_size(folder / name, entry)
    wanted = [CONFIG, WEIGHTS] + ([OPTIMIZER, PROGRESS] if optimizer else [])
    for name in wanted:
        if name not in files:
            why = "; it was saved without what training needs to go on" if name == OPTIMIZER else ""
            raise ModelError(f"{folder}: there is no {name}{why}")

    def optional(name: str, kind: type) -> Any:
        return _read_json(folder / name, kind) if name in files else None

    options = _read_json(folder / CONFIG, dict)
    features, labels, rows, base = (_size(folder / CONFIG, options, key) for key in SIZES)
    try:
        config = Config.from_dict(options)
    except (ConfigError, TypeError) as error:
        raise ModelError(f"{folder / CONFIG}: {error}") from None
    state = read_tensors(folder / WEIGHTS)
    if optimizer:
        state |= read_tensors(folder / OPTIMIZER)
    counts = read_tensors(folder / LABEL_COUNTS).get("label_counts") if LABEL_COUNTS in files else None
    if counts is not None and counts.shape != (labels,):
        raise ModelError(f"{folder / LABEL_COUNTS}: counts of shape {counts.shape} for {labels} labels")
    return SavedModel(
        config=config,
        features=features,
        labels=labels,
        state=state,
        label_names=_names(folder / LABELS, optional(LABELS, list), labels),
        feature_names=_names(folder / FEATURES, optional(FEATURES, list), features),
        vectorizer=optional(VECTORIZER, dict),
        progress=optional(PROGRESS, dict) or {},
        label_counts=counts,
        rows=rows,
        base=base,
        estimator=optional(ESTIMATOR, dict),
    )


def _write_files(folder: Path, model: SavedModel, optimizer: bool) -> None:
    manifest: dict[str, dict[str, int]] = {}

    def write_json(name: str, content: Any) -> None:
        with _checked_file(folder / name, manifest) as write:
            write(json.dumps(content, indent=1).encode())

    def write_arrays(name: str, arrays: Mapping[str, Array]) -> None:
        with _checked_file(folder / name, manifest) as write:
            stream_tensors(write, arrays)

    sizes = {key: getattr(model, key) for key in SIZES}
    write_json(CONFIG, model.config.to_dict() | sizes)
    weights = {name for name in model.state if name.endswith((".weights", ".bias"))}
    write_arrays(WEIGHTS, {name: a for name, a in model.state.items() if name in weights})
    if optimizer:
        write_arrays(OPTIMIZER, {name: a for name, a in model.state.items() if name not in weights})
        write_json(PROGRESS, model.progress)
    if model.label_counts is not None:
        write_arrays(LABEL_COUNTS, {"label_counts": model.label_counts})
    for name, content in (
        (LABELS, model.label_names), (FEATURES, model.feature_names), (VECTORIZER, model.vectorizer),
        (ESTIMATOR, model.estimator),
    ):  # fmt: skip
        if content is not None:
            write_json(name, content)
    about = {"format": FORMAT, "dslide": version("dslide"), "files": dict(manifest)}
    with _checked_file(folder / MANIFEST, {}) as write:
        write(json.dumps(about, indent=1).encode())
    _sync_folder(folder)


@contextmanager
def _checked_file(path: Path, manifest: dict[str, dict[str, int]]) -> Iterator[Callable[[Any], None]]:
    """A function to write the file's bytes with; when it is closed they are on disk and in the manifest."""
    entry = {"size": 0, "crc32": 0}
    with open(path, "wb") as file:

        def write(piece: bytes | memoryview) -> None:
            file.write(piece)
            entry["size"] += len(piece)
            entry["crc32"] = zlib.crc32(piece, entry["crc32"])

        yield write
        file.flush()
        os.fsync(file.fileno())
    manifest[path.name] = entry


def _read_manifest(folder: Path) -> dict[str, dict[str, int]]:
    """The entries of the manifest, each checked for name and type."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such model folder")
    if not path.exists():
        raise ModelError(f"{folder}: not a complete model folder: there is no {MANIFEST}")
    content = _read_json(path, dict)
    written = content.get("format")
    if type(written) is not int or written < 1:
        raise ModelError(f"{path}: expected a format number, not {written!r}")
    if written > FORMAT:
        raise ModelError(
            f"{path}: the model has format {written}, written by dslide {content.get('dslide')}; this "
            f"version reads formats up to {FORMAT}, please upgrade"
        )
    files = content.get("files")
    if not isinstance(files, dict):
        raise ModelError(f"{path}: damaged: no list of files")
    for name, entry in files.items():
        if name not in FILES:  # also keeps paths like ../x from being followed
            raise ModelError(f"{path}: damaged: {name!r} is not a file of a model")
        if not isinstance(entry, dict) or not all(type(entry.get(k)) is int for k in ("size", "crc32")):
            raise ModelError(f"{path}: damaged: no size and checksum of {name}")
    return files


def _check_size(path: Path, entry: dict[str, int]) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror}") from None
    if size != entry["size"]:
        raise ModelError(f"{path}: damaged: it has {size} bytes, but {entry['size']} were written")


def _check_file(path: Path, entry: dict[str, int]) -> None:
    _check_size(path, entry)
    crc = 0
    try:
        with open(path, "rb") as file:
            while piece := file.read(READ_SIZE):
                crc = zlib.crc32(piece, crc)
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror}") from None
    if crc != entry["crc32"]:
        raise ModelError(f"{path}: damaged: its checksum is not the one that was written")


def _read_json(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: damaged: not valid JSON") from None
    if not isinstance(content, kind):
        raise ModelError(f"{path}: damaged: expected a JSON {'list' if kind is list else 'object'}")
    return content


def _size(path: Path, options: dict[str, Any], key: str) -> int:
    """Takes a size out of the options."""
    value = options.pop(key, None)
    if type(value) is not int or value < 0:
        raise ModelError(f"{path}: {key}: expected a whole number, not {value!r}")
    return value


def _names(path: Path, names: list[Any] | None, count: int) -> list[str] | None:
    if names is not None and (len(names) != count or not all(isinstance(name, str) for name in names)):
        raise ModelError(f"{path}: expected a list of {count} names")
    return names


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(folder.name + suffix)


def _recover(folder: Path) -> None:
    """Ends a replacement that was cut short: back to the old model, or rid of it if the new one is there."""
    old = _beside(folder, ".old")
    if old.exists():
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)


def _sync_folder(folder: Path) -> None:
    """Makes names in the folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
