"""Fits the estimator: a new network, in memory or as a run in a folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslide.api import open_run
from dslide.comm import job
from dslide.config import Config
from dslide.data import Dataset, TextVectorizer
from dslide.errors import TERMINATED, DataError, Terminated
from dslide.model.defaults import resolve
from dslide.sklearn.inputs import relative_weights
from dslide.sklearn.label_coder import LabelCoder, column_names, is_dense, read_labels
from dslide.sklearn.ranks import new_trainer, tuned
from dslide.sklearn.rows import read_rows
from dslide.training.autotune import given_options
from dslide.training.callbacks import Callback
from dslide.training.early_stopping import EarlyStopping, hold_out_rows
from dslide.training.evaluation import EvaluationOptions
from dslide.training.logging import ProgressLine
from dslide.training.trainer import Trainer
from dslide.util.signals import terminated

if TYPE_CHECKING:
    from dslide.sklearn.estimator import SlideClassifier


def fit(
    model: SlideClassifier, X: Any, y: Any, callbacks: Sequence[Callback], out: str | Path | None, eval_set: Any,
    sample_weight: Any,
) -> None:  # fmt: skip
    """As `SlideClassifier.fit`."""
    config, labels = model._config(), read_labels(y)
    coder = LabelCoder.learn(labels, is_dense(y))
    model._forget()
    data = Dataset(read_rows(model, X, new=True), coder.encode(labels), source="y")
    if sample_weight is not None:
        data = dataclasses.replace(data, row_weights=relative_weights(sample_weight, len(data)))
    validation = None if eval_set is None else _validation(model, eval_set, coder)
    if out is None:
        config = tuned(config, data, callbacks, model.verbose) if config.autotune else config
        config = resolve(config, data.labels, data, job(config.watchdog).size)
        rows: Dataset = data
        if validation is None:
            rows, validation = hold_out_rows(data, config.validation, config.seed)
        trainer = new_trainer(config, data)
        trainer.callbacks = [*callbacks, *([ProgressLine()] if model.verbose else [])]
        early_stopping = None if validation is None else EarlyStopping.in_memory(trainer, rows, validation)
        interrupted = trainer.fit(rows, early_stopping).interrupted
    else:
        names = coder.names() or column_names(y)
        trainer, interrupted = _fit_run(model, config, data, coder, names, out, callbacks, validation)
    model._keep(trainer.network, trainer, coder)
    model._name_labels(column_names(y))
    model._count(data)
    model.n_iter_ = trainer.epoch
    if interrupted:
        raise SystemExit(TERMINATED) if terminated() else KeyboardInterrupt


def _fit_run(
    model: SlideClassifier, config: Config, data: Dataset, coder: LabelCoder, names: list[str] | None, out: str | Path,
    callbacks: Sequence[Callback], validation: Dataset | None,
) -> tuple[Trainer, bool]:  # fmt: skip
    """Trains as a run in a folder, from its newest checkpoint if there is one; also returns whether training was
    interrupted."""
    vectorizer = getattr(model, "vectorizer_", None)
    data = dataclasses.replace(
        data, label_names=names, feature_names=model._feature_names(),
        vectorizer=vectorizer if isinstance(vectorizer, TextVectorizer) else None,
    )  # fmt: skip
    run = open_run(
        data, given_options(config), out=out, resume_existing=True, testing=EvaluationOptions(),
        progress=model.verbose, callbacks=callbacks, estimator=model._about(coder), validation=validation,
    )  # fmt: skip
    try:
        return run.trainer, run.train().interrupted
    except Terminated:
        return run.trainer, True


def _validation(model: SlideClassifier, eval_set: Any, coder: LabelCoder) -> Dataset:
    """Rows to tell which epoch is the best, as the user gives them."""
    pair = eval_set[0] if isinstance(eval_set, list) and len(eval_set) == 1 else eval_set
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise DataError("eval_set: expected a pair (X, y)")
    return Dataset(read_rows(model, pair[0], new=False), coder.encode(read_labels(pair[1])), source="eval_set")
