"""Trained models on disk, as commands use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError
from ..model_folder import SavedModel, load_model

if TYPE_CHECKING:
    from ..data import Dataset, SparseRows, TextVectorizer
    from ..network import Network

ROWS_AT_A_TIME = 4096  # predicted together: bounds the memory that predictions of a large file need


def model_folder(path: str | Path) -> Path:
    """The model's folder, given it or the folder of the run that made it."""
    inner = Path(path) / "model"
    return inner if inner.exists() or inner.with_name("model.old").exists() else Path(path)


def open_model(path: str | Path, threads: int = 0) -> tuple[SavedModel, Network]:
    """A model ready to predict; its files are checked."""
    from ..network import Network

    saved = load_model(model_folder(path), verify=True)
    network = Network(saved.config.replace(threads=threads), saved.features, saved.labels)
    network.load_state(saved.state)
    return saved, network


def vectorizer_of(saved: SavedModel) -> TextVectorizer | None:
    """What turns text into the model's features."""
    from ..data import TextVectorizer

    return None if saved.vectorizer is None else TextVectorizer.from_dict(saved.vectorizer)


def load_for(saved: SavedModel, path: str | Path, options: dict[str, Any]) -> Dataset:
    """Data with the columns of the model; DataError if it has features that the model lacks."""
    from ..data import load

    if options.get("base", "auto") == "auto":
        options = options | {"base": saved.base}
    data = load(path, **options, vectorizer=vectorizer_of(saved), label_names=saved.label_names)
    check_features(path, data.x, saved.features)
    return data


def check_features(path: str | Path, x: SparseRows, features: int) -> None:
    """Raises DataError if rows have features beyond the model's."""
    if x.columns > features:
        raise DataError(
            f"{path}: the data has {x.columns:,} features, but the model was trained with {features:,}"
        )


def pieces(rows: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows to predict together."""
    for begin in range(0, rows, ROWS_AT_A_TIME):
        yield begin, min(begin + ROWS_AT_A_TIME, rows)
