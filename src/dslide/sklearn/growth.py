"""Further training of the estimator, batch by batch; the network grows if there are new labels or features."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np

from dslide.config import OPTIONS
from dslide.data import Dataset, SparseRows
from dslide.data.dataset import smoothed_frequencies
from dslide.errors import ConfigError, DataError, ModelError
from dslide.model.defaults import resolve_like
from dslide.sklearn.inputs import are_texts
from dslide.sklearn.label_coder import LabelCoder, column_names, is_dense, read_labels
from dslide.sklearn.ranks import new_trainer
from dslide.sklearn.rows import read_more_rows, read_rows
from dslide.training.autotune import given_options
from dslide.training.run import CHANGEABLE, first_change
from dslide.training.trainer import Trainer

if TYPE_CHECKING:
    from dslide.sklearn.estimator import SlideClassifier

FIXED = tuple(name for name in OPTIONS if name not in (*CHANGEABLE, "batch_size"))  # between calls of partial_fit


def partial_fit(model: SlideClassifier, X: Any, y: Any, classes: Any, sample_weight: Any) -> None:
    """As `SlideClassifier.partial_fit`."""
    first = not hasattr(model, "network_")
    if first and model.vectorizer is None and are_texts(X):
        raise DataError("X: partial_fit sees too few texts to learn words from; give a vectorizer that needs none, "
                        "such as HashingVectorizer, or matrices")  # fmt: skip
    labels = read_labels(y)
    x = read_rows(model, X, new=first) if first else read_more_rows(model, X)
    coder = _coder_for(model, labels, is_dense(y), classes, first)
    data = Dataset(x, coder.encode(labels), source="y", row_weights=sample_weight)
    if first:
        if model.start == "discriminant":
            raise ConfigError("start = discriminant needs all rows at once: use fit")
        trainer = new_trainer(model._config(), data)
        model._keep(trainer.network, trainer, coder)
    else:
        trainer = _reconfigured_trainer(model)
        if (data.features, data.labels) != (trainer.network.features, trainer.network.labels):
            trainer = _grow(model, trainer, data, coder, column_names(y))
            gc.collect()  # the smaller network, which refers to itself
    model._count(data)
    trainer.fit_pass(data)
    trainer.set_worth(model._label_counts, model._rows)
    model.n_iter_ = trainer.epoch


def _coder_for(model: SlideClassifier, labels: Any, dense: bool, classes: Any, first: bool) -> LabelCoder:
    """What partial_fit encodes labels with."""
    if first and classes is None and not isinstance(labels, SparseRows):
        raise DataError("classes must be passed on the first call to partial_fit")
    every = labels if isinstance(labels, SparseRows) or not first else read_labels(classes)
    if first:
        coder = LabelCoder.learn(every, dense)
        if classes is not None and not np.array_equal(np.unique(classes), coder.classes):
            raise DataError("classes: not the columns of y")
        return coder
    if classes is None:
        return model._coder.with_more(labels)
    given = read_labels(classes)
    if not np.isin(model._coder.classes, np.unique(classes)).all():
        raise DataError("classes: some of those of earlier calls are missing")
    return model._coder.with_more(given).with_more(labels)


def _grow(
    model: SlideClassifier, trainer: Trainer, data: Dataset, coder: LabelCoder, names: list[str] | None
) -> Trainer:
    """A trainer whose network has the columns of the data, and has learned what the given one has."""
    old = getattr(model, "label_names_", None)
    if names is not None and old is not None and names[: len(old)] != old:
        raise DataError("y: its first columns have other names than those of the rows before")
    counts, rows, passes = model._label_counts, model._rows, model.n_iter_
    before = trainer.network
    grown = new_trainer(trainer.config, data)
    grown.callbacks = trainer.callbacks
    grown.load_progress(trainer.progress())
    grown.network.load_smaller(before.state(), before.features, before.labels)
    model._keep(grown.network, grown, coder)
    model._name_labels(names if names is not None or old is None or len(old) == data.labels else None)
    model._label_counts[: len(counts)], model._rows, model.n_iter_ = counts, rows, passes
    total = rows + len(data)
    frequencies = smoothed_frequencies(model._label_counts + data.label_counts, total)
    grown.network.set_new_bias(frequencies, len(counts))
    grown.network.add_counts(data.x, data.y, frequencies, total)
    return grown


def _reconfigured_trainer(model: SlideClassifier) -> Trainer:
    """The trainer, with the options as they are now; ConfigError if some changed that must not."""
    trainer: Trainer | None = model.trainer_
    if trainer is None:
        raise ModelError("the model was loaded only to predict; load(..., trainable=True) opens it for training")
    given = given_options(model._config())
    decided = {name: getattr(trainer.config, name) for name in OPTIONS if name not in given}  # by autotune
    config = resolve_like(model._config().replace(**decided), trainer.config)
    if name := first_change(config, trainer.config, FIXED):
        change = f"{getattr(trainer.config, name)!r}, and partial_fit can't continue with {getattr(config, name)!r}"
        raise ConfigError(f"{name}: training began with {change}; fit starts anew")
    trainer.reconfigure(config)
    return trainer
