"""Trained models on disk, as commands use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslide.checkpoint.collective_load import load_on_all_ranks
from dslide.checkpoint.saved_model import SavedModel
from dslide.cli.tokens import is_stream, load_stream, options_of
from dslide.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dslide.comm import Communicator
    from dslide.data import Data, Dataset, TextVectorizer
    from dslide.model.network import Network

ROWS_AT_A_TIME = 4096  # predicted together: bounds the memory that predictions of a large file need


def open_model(path: str | Path, comm: Communicator, threads: int = 0) -> tuple[SavedModel, Network]:
    """A model ready to predict, split over the ranks there are; its files are checked."""
    from dslide.comm.topology import local_ranks
    from dslide.model.network import Network
    from dslide.util.threads import use_threads

    saved = load_on_all_ranks(path, comm, verify=True)
    use_threads(threads or local_ranks(comm).threads)
    network = comm.together(
        "making the network",
        lambda: Network(saved.config, saved.features, saved.labels, comm=comm, trainable=False, weights=saved.state),
    )
    return saved, network


def vectorizer_of(saved: SavedModel) -> TextVectorizer | None:
    """What turns text into the model's features."""
    from dslide.data import TextVectorizer

    return None if saved.vectorizer is None else TextVectorizer.from_dict(saved.vectorizer)


def load_for(saved: SavedModel, path: str | Path, options: dict[str, Any], history: str | Path | None = None) -> Data:
    """Data with the columns of the model; DataError if it has features that the model lacks."""
    if options["format"] == "auto" and saved.interactions:
        options = options | {"format": "interactions"}
    if options["format"] == "interactions":
        if not saved.interactions:
            raise DataError(f"{path}: interactions are only for models that were trained on interactions")
        return _load_interactions(saved, path, options, history)
    if history is not None:
        raise ConfigError(f"history: only interactions have one, not {path}")
    if is_stream(options, saved):
        return load_stream(path, options, options_of(saved, path), saved.label_names)
    return load_like(path, options, vectorizer_of(saved), saved.label_names, saved.base, saved.features)


def _load_interactions(
    saved: SavedModel, path: str | Path, options: dict[str, Any], history: str | Path | None
) -> Dataset:
    """Interactions with the items of the model."""
    from dslide.data import for_items, load

    counts = saved.label_counts
    earlier = None if history is None else for_items(load(history, format="interactions"), saved.features, counts)
    data = for_items(load(path, **options, history=earlier), saved.features, counts)
    if saved.label_names is None or data.unknown_labels:
        return data
    return data.with_label_names(saved.label_names)


def load_like(
    path: str | Path,
    options: dict[str, Any],
    vectorizer: TextVectorizer | None,
    label_names: Sequence[str] | None,
    base: int,
    features: int,
) -> Dataset:
    """Data read the way the training data was; DataError if it has more features."""
    from dslide.data import detect_format, load

    options = dict(options)
    if options["format"] == "auto":
        options["format"] = detect_format(path)
    if options["format"] == "tsv" and vectorizer is None:
        raise DataError(f"{path}: is raw text, but the model was trained on numbered features and knows no words")
    if options["base"] == "auto" and options["format"] in ("xmc", "libsvm"):  # others always count from 0
        options["base"] = base
    data = load(path, **options, vectorizer=vectorizer, label_names=label_names)
    if data.x.columns > features:
        raise DataError(f"{path}: has {data.x.columns:,} features, but the model was trained with {features:,}")
    return data


def pieces(rows: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows to predict together."""
    for begin in range(0, rows, ROWS_AT_A_TIME):
        yield begin, min(begin + ROWS_AT_A_TIME, rows)
