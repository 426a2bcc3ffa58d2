"""Whether the parts of a saved model go together. A folder may come from anyone: that its checksums are right says only
that it is as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dslide.checkpoint.manifest import (
    CONFIG,
    FEATURES,
    LABEL_COUNTS,
    LABELS,
    PROGRESS,
    TOKENS,
    VECTORIZER,
    read_number,
)
from dslide.data import TextVectorizer, TokenOptions
from dslide.errors import ConfigError, DataError, ModelError

if TYPE_CHECKING:
    from dslide.checkpoint.saved_model import SavedModel

STEPS = ("step", "epoch", "position", "samples")  # of progress
MOST_SAMPLES = 2**62


def check_model(folder: Path, model: SavedModel) -> None:
    """ModelError if parts of the model, all but its arrays, are none or contradict each other."""
    if model.interactions and model.features != model.labels:
        raise ModelError(f"{folder / CONFIG}: with interactions, features and labels must be as many")
    if model.vectorizer is not None:
        _check_vectorizer(folder / VECTORIZER, model.vectorizer, model.features)
    if model.tokens is not None:
        _check_tokens(folder, model)
    counts = model.label_counts
    if counts is not None and (counts.dtype != np.int64 or counts.min(initial=0) < 0):
        raise ModelError(f"{folder / LABEL_COUNTS}: damaged: expected counts of type int64, none below 0")
    for key in STEPS:
        if key in model.progress:
            read_number(folder / PROGRESS, model.progress, key, high=MOST_SAMPLES if key == "samples" else 2**31 - 1)


def _check_vectorizer(path: Path, values: dict[str, Any], features: int) -> None:
    try:
        words = len(TextVectorizer.from_dict(values).words)
    except DataError as error:
        raise ModelError(f"{path}: damaged: {error}") from None
    if words != features:
        raise ModelError(f"{path}: damaged: it has {words} words for {features} features")


def _check_tokens(folder: Path, model: SavedModel) -> None:
    assert model.tokens is not None
    if model.label_names is None or model.feature_names != model.label_names:
        raise ModelError(f"{folder}: a model of words must have them in {LABELS} and the same in {FEATURES}")
    try:
        TokenOptions(**model.tokens)
    except (ConfigError, TypeError):
        raise ModelError(f"{folder / TOKENS}: damaged: not the options of a stream of words") from None
