"""Options that are left open, decided by what the data is. docs/accuracy.md has the measurements behind the numbers."""

from __future__ import annotations

from typing import Any

from dslide.config import Config
from dslide.data import Data, Dataset, Tokens
from dslide.model.lsh import resolve_output

OPEN = (-1, "auto", ())  # what options that are left open have as values
SEVERAL_LABELS = 1.5  # labels of a row, on average, from which on they are taken not to exclude each other
MANY_LABELS = 1000  # from which on a wider hidden layer pays, as long as all outputs are computed
NARROW, WIDE = (256,), (512,)  # hidden layers

ROWS: dict[str, Any] = {  # rows of features with labels
    "hidden": NARROW,
    "dropout_input": 0.1,
    "dropout_hidden": 0.3,
    "prior_labels": 64,
    "prior_power": 1.0,
    "prior_boost": 1.0,
    "prior_scale": 30.0,
}
# Users with their items. The label prior weighs rare items less, so that more of the list is popular items.
# It counts more in prediction, for items that a user has not had yet, than in training.
ITEMS = ROWS | {
    "dropout_input": 0.3,
    "dropout_hidden": 0.2,
    "prior_labels": 256,
    "prior_power": 0.5,
    "prior_boost": 4.0,
    "prior_scale": 10.0,
}
WORDS = ROWS | {"dropout_input": 0.0, "dropout_hidden": 0.0, "prior_labels": 0}  # a stream: a row has one feature


def settled(config: Config, labels: int) -> Config:
    """The options with those decided that are left open, where nothing is known of the data but its labels."""
    return _settled(config, ROWS | {"hidden": _width(config, labels)})


def for_data(config: Config, data: Data) -> Config:
    """The options with those decided that are left open, for this data. Where all outputs are computed for rows of
    features, the loss is sigmoid if rows have several labels, else softmax, and the hidden layer is wider."""
    if isinstance(data, Tokens):
        return _settled(config, WORDS)
    assert isinstance(data, Dataset)
    if data.users is not None:
        return _settled(config, ITEMS)
    _, labels_per_row = data.values_per_row
    several = labels_per_row > SEVERAL_LABELS and resolve_output(config, data.labels) == "full"
    return _settled(config, ROWS | {"hidden": _width(config, data.labels), "loss": "sigmoid" if several else "softmax"})


def as_before(config: Config, before: Config) -> Config:
    """The options with those that are left open as they were decided before, when training began."""
    return _settled(config, {name: getattr(before, name) for name in (*ROWS, "loss", "activation")})


def _width(config: Config, labels: int) -> tuple[int, ...]:
    return WIDE if labels >= MANY_LABELS and resolve_output(config, labels) == "full" else NARROW


def _settled(config: Config, decided: dict[str, Any]) -> Config:
    decided = {"loss": "softmax", "activation": "relu" if len(config.hidden) > 1 else "linear"} | decided
    changes = {name: value for name, value in decided.items() if getattr(config, name) in OPEN}
    return config.replace(**changes) if changes else config
