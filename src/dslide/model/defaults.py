"""Options that are left open, decided once: from the number of labels and from what kind of data there is.
docs/results/accuracy.md has the measurements behind the numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dslide.config import Config
from dslide.data import Data, Dataset, Tokens
from dslide.errors import ConfigError
from dslide.model.label_prior import has_label_prior, has_trained_prior
from dslide.model.micro_batches import PARTS

FULL_BELOW = 8192  # labels up to which all outputs are computed
SEVERAL_LABELS = 1.5  # mean labels of a row above which they are taken not to exclude each other
LOOKED_UP = ("lsh", "cells")  # values of `output` with which rows look up neurons
HIDDEN = (256,)
EPOCHS_OF_ONE, EPOCHS_OF_ROWS, EPOCHS = 2, 3, 4  # passes over rows with one label, with several, and other data
STEPS = 200  # that small data gets at least
# Rows in a step for each rank, as long as training has enough steps: with fewer, larger batches cost accuracy.
BATCH, BATCH_STEPS = 256, 640
MOST_BATCH = 2048  # the largest that was tried on real data
MOST_EPOCHS = 100
# Rows held out of training: a share of them, but not fewer than a calibration needs, nor more than tell anything.
VALIDATION_SHARE, VALIDATION_ROWS = 0.01, (1000, 2000)
MOST_VALIDATION = 0.05  # of the rows
VALIDATION_WORK = 0.1  # of an epoch's own: after each epoch every held-out row is scored against all labels
LEAST_VALIDATION = 200  # rows; where there can't be as many, all are trained on
FEW_ROWS = round(LEAST_VALIDATION / MOST_VALIDATION)  # fewer are all trained on
MOST_COPIED = 2 << 30  # bytes of data, of which the rows to train on are copied if others are held out
LINKS = 32768  # of the label prior that a row visits at most, on average, which bounds the time of a step
LEAST_DENSE, MOST_DENSE = 16, 4096  # features of dense rows
DENSE_SHARE = 0.5  # of the features that dense rows have at least, on average
MOST_DIRECTIONS = 512  # of a linear discriminant
FEATURES = 8192  # of the rows that a row is trained against in linear classifiers, at most, on average

ROWS: dict[str, Any] = {  # rows of features with labels
    "dropout_input": 0.0,
    "dropout_hidden": 0.1,
    "prior_labels": 128,
    "prior_power": 1.0,
    "prior_boost": 1.0,
    "prior_scale": 10.0,
    "prior_learning_rate": 2.0,
    "prior_hits": 8,
    "linear_negatives": 128,
    "linear_items": 0,
    "neighbours": 50,
    "schedule": "trapezoid",
}
# Users with their items. The label prior divides less by frequency, so that popular items rank higher. It counts more
# in prediction than in training: there it scores items that the user does not have yet.
ITEMS: dict[str, Any] = {
    "dropout_input": 0.3,
    "dropout_hidden": 0.2,
    "prior_labels": 256,
    "prior_power": 0.5,
    "prior_boost": 4.0,
    "prior_scale": 10.0,
    "prior_learning_rate": 0.0,
    "prior_hits": 0,
    "linear_negatives": 0,
    "linear_items": 100,
    "neighbours": 0,
    "schedule": "linear",
}
# Rows in which most features are present, such as embeddings. A label prior, of a few labels for each feature, says
# nothing about them.
DENSE = ROWS | {"dropout_hidden": 0.0, "prior_labels": 0, "linear_negatives": 0, "neighbours": 0}
# A stream: a row has one feature.
WORDS = ROWS | {
    "dropout_input": 0.0,
    "dropout_hidden": 0.0,
    "prior_labels": 0,
    "linear_negatives": 0,
    "neighbours": 0,
    "schedule": "linear",
}


@dataclass(frozen=True)
class ResolvedConfig(Config):
    """Options of which none is left open: what was decided, where `Config` is what was asked for. (Hash functions and
    tables differ from layer to layer: `layout.LayerSpec` has them.)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        has_shares = bool(self.hidden)  # without hidden layers there is none to be open
        names = [name for name in _RULES if name != "hidden_share" or has_shares]
        if still_open := [name for name in names if is_open(name, getattr(self, name))]:
            raise ValueError(f"options left open: {', '.join(still_open)}")

    @property
    def hits_per_row(self) -> int:
        """Neurons looked up that each row adds to the output layer's active set."""
        return self.hash_hits if self.output in LOOKED_UP else 0


@dataclass(frozen=True)
class _Facts:
    """What decisions depend on. `config` has the options that were decided before."""

    config: Config
    labels: int
    data: Data | None
    ranks: int = 1

    @property
    def kind(self) -> dict[str, Any]:
        if isinstance(self.data, Tokens):
            return WORDS
        if self.data is not None and self.data.users is not None:
            return ITEMS
        return DENSE if self.config.start == "discriminant" or self.all_dense else ROWS

    @property
    def all_dense(self) -> bool:
        """Whether rows of data are held as a dense matrix."""
        return isinstance(self.data, Dataset) and self.data.dense_features == self.data.features > 0

    def start(self) -> str:
        data, config = self.data, self.config
        if not isinstance(data, Dataset) or data.users is not None:
            return "random"
        one = len(config.hidden) == 1 and all(share == 1 for share in config.hidden_share)
        fits = one and config.activation != "relu" and config.prior_labels <= 0
        features_per_row, _ = data.values_per_row
        features_per_row += data.dense_features
        dense = features_per_row >= DENSE_SHARE * data.features and LEAST_DENSE <= data.features <= MOST_DENSE
        return "discriminant" if fits and dense else "random"

    def hidden(self) -> tuple[int, ...]:
        if self.config.start == "random" or self.data is None:
            return HIDDEN
        return (max(LEAST_DENSE, min(MOST_DIRECTIONS, self.data.features)),)

    def output(self) -> str:
        if self.labels <= FULL_BELOW:
            return "full"
        if has_trained_prior(self.config):
            return "random"
        dense = all(share == 1 for share in self.config.hidden_share[-1:])
        return "cells" if dense and self.config.active_sets == "shared" else "lsh"

    @property
    def labels_per_row(self) -> float | None:
        """The mean of rows of features; None for other data, or if it is unknown."""
        return self.data.values_per_row[1] if isinstance(self.data, Dataset) and self.kind is not ITEMS else None

    def loss(self) -> str:
        return "sigmoid" if (self.labels_per_row or 0) > SEVERAL_LABELS else "softmax"

    def batch_size(self) -> int:
        """Grows with the ranks, as messages and what each rank does for every step cost less for a row then: a power of
        two. Only what was tried on real data grows; the rate of other optimizers would have to grow with the batch."""
        config = self.config
        has_prior = config.prior_labels != 0 and config.prior_learning_rate != 0 and config.active_sets == "shared"
        tried = has_prior and config.optimizer == "adagrad" and self.kind is ROWS
        if not isinstance(self.data, Dataset) or not tried:
            return BATCH
        rows = len(self.data) * (config.epochs or EPOCHS_OF_ONE)  # as was tried
        most = min(BATCH * self.ranks, MOST_BATCH, rows // BATCH_STEPS)
        return max(BATCH, 1 << max(0, most.bit_length() - 1))

    def of_batch(self, hits: int) -> int:
        """How many hits each row of a larger batch adds: the batch shares the active set, and has no more hits in all,
        so that only the rows' labels make it larger."""
        return max(1, hits * BATCH // max(BATCH, self.config.batch_size)) if hits else 0

    def hash_hits(self) -> int:
        return self.of_batch(4) if self.config.active_sets == "shared" else self.sampled(4)

    def prior_hits(self) -> int:
        hits: int = self.kind["prior_hits"]
        return self.of_batch(hits // self.fewer_negatives())

    @property
    def one_label(self) -> bool:
        """Whether rows of features have one label each."""
        return self.kind is ROWS and self.labels_per_row is not None and self.labels_per_row <= SEVERAL_LABELS

    def fewer_negatives(self) -> int:
        """What the numbers of negatives are divided by: where rows have one label, half as many do."""
        return 2 if self.one_label else 1

    def prior_labels(self) -> int:
        if not self.config.hidden:
            return 0
        return self.for_row(self.kind["prior_labels"], LINKS)

    def linear_negatives(self) -> int:
        return self.for_row(self.kind["linear_negatives"], FEATURES) if has_label_prior(self.config) else 0

    def for_row(self, most: int, budget: int) -> int:
        """How many of something each feature of a row has: at most so many, and a budget for the row, on average."""
        if most == 0 or not isinstance(self.data, Dataset):
            return most
        features_per_row, _ = self.data.values_per_row
        return max(1, min(most, round(budget / max(1.0, features_per_row))))

    def linear_items(self) -> int:
        return int(self.kind["linear_items"]) if has_label_prior(self.config) else 0

    def neighbours(self) -> int:
        return int(self.kind["neighbours"]) if self.config.linear_negatives else 0

    def random_negatives(self) -> int:
        shared = 1024 // self.fewer_negatives() if has_trained_prior(self.config) else 2048
        return self.sampled(min(self.labels, shared))

    def epochs(self) -> int:
        several = EPOCHS_OF_ROWS if self.kind is ROWS else EPOCHS
        least = EPOCHS_OF_ONE if self.one_label else several
        if not isinstance(self.data, Dataset):
            return least
        steps = -(-max(1, len(self.data)) // self.config.batch_size)
        return max(least, min(MOST_EPOCHS, -(-STEPS // steps)))

    def validation(self) -> float:
        data, config = self.data, self.config
        if not isinstance(data, Dataset) or len(data) == 0 or data.copied_bytes > MOST_COPIED:
            return 0.0
        if data.users is not None and np.count_nonzero(np.diff(data.y.indptr) > 1) < LEAST_VALIDATION:
            return 0.0  # users with one item keep it
        _, labels_per_row = data.values_per_row
        hits = labels_per_row + config.prior_hits + (config.hash_hits if config.output in LOOKED_UP else 0)
        active = min(self.labels, config.random_negatives + config.batch_size * hits)
        if config.output == "full":
            active = self.labels
        # neurons that a row costs: in training in three passes over active ones, in validation in one over all
        affordable = VALIDATION_WORK * len(data) * 3 * active / self.labels
        least, most = VALIDATION_ROWS
        wanted = min(most, max(least, VALIDATION_SHARE * len(data)))
        rows = min(wanted, MOST_VALIDATION * len(data), max(LEAST_VALIDATION, affordable))
        return rows / len(data) if rows >= LEAST_VALIDATION else 0.0

    def sampled(self, shared: int) -> int:
        """Neurons that a row or batch adds to its active set: those of shared sets, or an eighth of the labels."""
        return shared if self.config.active_sets == "shared" else min(self.labels // 8 + 1, 256)


_RULES: dict[str, Callable[[_Facts], Any]] = {  # in the order in which they depend on each other
    "start": _Facts.start,
    "batch_size": _Facts.batch_size,
    **{name: lambda facts, name=name: facts.kind[name] for name in ROWS},  # type: ignore[misc]
    "prior_labels": _Facts.prior_labels,
    "prior_hits": _Facts.prior_hits,
    "linear_negatives": _Facts.linear_negatives,
    "linear_items": _Facts.linear_items,
    "neighbours": _Facts.neighbours,
    "output": _Facts.output,
    "hidden": _Facts.hidden,
    "hidden_share": lambda facts: (1.0,) * len(facts.config.hidden),
    "activation": lambda facts: "relu" if len(facts.config.hidden) > 1 else "linear",
    "loss": _Facts.loss,
    "hash_hits": _Facts.hash_hits,
    "random_negatives": _Facts.random_negatives,
    "negative_sampling": lambda facts: "frequency" if facts.config.active_sets == "shared" else "uniform",
    "micro_batches": lambda facts: PARTS,
    "epochs": _Facts.epochs,
    "validation": _Facts.validation,
}


def resolve(config: Config, labels: int, data: Data | None = None, ranks: int = 1) -> ResolvedConfig:
    """Decides every option that is left open, for training on so many ranks. Without data, which may be unknown still,
    as for rows of features."""
    if isinstance(config, ResolvedConfig):
        return config
    for name, rule in _RULES.items():
        if is_open(name, getattr(config, name)):
            config = config.replace(**{name: rule(_Facts(config, labels, data, ranks))})
    if _Facts(config, labels, data, ranks).all_dense and has_label_prior(config):
        fit = "a label prior is for sparse features, and all features of the data are dense"
        raise ConfigError(f"prior_labels: {fit}; a scipy.sparse matrix has sparse ones")
    return _resolved(config)


def resolve_like(config: Config, before: ResolvedConfig) -> ResolvedConfig:
    """Decides every option that is left open as it was decided before, when training began."""
    left_open = [name for name in _RULES if is_open(name, getattr(config, name))]
    return _resolved(config.replace(**{name: getattr(before, name) for name in left_open}))


def is_open(name: str, value: Any) -> bool:
    """Whether a value leaves an option open."""
    if name == "hidden":
        return bool(value == (-1,))
    return value == 0 if name in ("batch_size", "micro_batches", "epochs") else value in (-1, "auto", ())


def _resolved(config: Config) -> ResolvedConfig:
    return ResolvedConfig(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})
