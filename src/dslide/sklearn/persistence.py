"""The estimator as a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dslide.checkpoint.collective_load import load_on_all_ranks, open_on_all_ranks
from dslide.checkpoint.saved_model import SavedModel, save_model
from dslide.comm import job
from dslide.config import OPTIONS, Config
from dslide.data import TextVectorizer
from dslide.errors import ConfigError, ModelError
from dslide.sklearn.label_coder import LabelCoder
from dslide.sklearn.ranks import rebuild
from dslide.training.logging import warn
from dslide.training.model_card import write_card

if TYPE_CHECKING:
    from dslide.sklearn.estimator import SlideClassifier


def save(model: SlideClassifier, folder: str | Path) -> None:
    """As `SlideClassifier.save`."""
    saved = _saved(model, folder)
    save_model(folder, saved, optimizer=model.trainer_ is not None, comm=model.network_.comm)


def save_pretrained(model: SlideClassifier, folder: str | Path, metrics: Mapping[str, float] | None) -> None:
    """As `SlideClassifier.save_pretrained`."""
    saved, comm = _saved(model, folder), model.network_.comm
    save_model(folder, saved, optimizer=False, comm=comm)
    if comm.rank == 0:
        about = {} if metrics is None else {**metrics, "test_rows": metrics.get("rows")}
        write_card(Path(folder), saved, about, Path(folder).absolute().name)


def from_pretrained(cls: type[SlideClassifier], folder: str | Path, trainable: bool) -> SlideClassifier:
    """As `SlideClassifier.from_pretrained`."""
    if not Path(folder).exists() and len(Path(folder).parts) == 2:
        how = f"to copy a model of that name from the hub: hf download {folder} --local-dir FOLDER"
        raise ModelError(f"{folder}: there is no such model folder; {how}")
    return cls.load(folder, trainable=trainable)


def _saved(model: SlideClassifier, folder: str | Path) -> SavedModel:
    """The model as it is now, to be written to a folder."""
    check_is_fitted(model)
    network, trainer = model.network_, model.trainer_
    vectorizer = getattr(model, "vectorizer_", None)
    if vectorizer is not None and not isinstance(vectorizer, TextVectorizer):
        warn(f"{folder}: the {type(vectorizer).__name__} is not saved with the model, only dslide's own would be")
    return SavedModel(
        config=network.config, features=network.features, dense_features=model._dense_features,
        labels=network.labels, state=network.state(),
        label_names=model._coder.names() or getattr(model, "label_names_", None), feature_names=model._feature_names(),
        vectorizer=vectorizer.to_dict() if isinstance(vectorizer, TextVectorizer) else None,
        progress={} if trainer is None else trainer.progress(),
        label_counts=model._label_counts, rows=model._rows, base=getattr(model, "_base", 0),
        interactions=getattr(model, "_interactions", False), layout=getattr(model, "_layout", None),
        estimator=model._about(model._coder) | {"passes": model.n_iter_},
    )  # fmt: skip


def load(cls: type[SlideClassifier], folder: str | Path, trainable: bool) -> SlideClassifier:
    """As `SlideClassifier.load`."""
    read = open_on_all_ranks if trainable else load_on_all_ranks  # to train, arrays are received in place
    saved = read(folder, job(), optimizer=trainable, verify=True)
    about = saved.estimator or {"multilabel": True, "dense": False, "dtype": "<i8"}
    asked = _asked(folder, about["options"]) if "options" in about else saved.config
    model = cls(**{name: getattr(asked, name) for name in OPTIONS})
    coder = LabelCoder.restore(about, saved.label_names, saved.labels)
    progress = saved.progress if trainable else None
    model._keep(*rebuild(saved.config, saved.features, saved.labels, saved.state, progress), coder)
    if saved.label_counts is not None:
        model._label_counts[:], model._rows = saved.label_counts, saved.rows
    model.n_features_in_, model._dense_features = saved.features, saved.dense_features
    model.n_iter_ = passes = about.get("passes", saved.progress.get("epoch", 0))
    if type(passes) is not int or passes < 0:
        raise ModelError(f"{folder}: damaged model: passes: expected a whole number, not {passes!r}")
    if saved.estimator is not None and saved.feature_names is not None:
        model.feature_names_in_ = np.array(saved.feature_names, object)
    model._base, model._interactions, model._layout = saved.base, saved.interactions, saved.layout
    model._name_labels(saved.label_names)
    model.vectorizer_ = None if saved.vectorizer is None else TextVectorizer.from_dict(saved.vectorizer)
    return model


def _asked(folder: str | Path, options: Any) -> Config:
    """The options that a saved estimator was given; ModelError if they are damaged."""
    try:
        return Config.from_dict(options)
    except (ConfigError, TypeError) as error:
        raise ModelError(f"{folder}: damaged model: options of the estimator: {error}") from None
