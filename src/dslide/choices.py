"""Options that are left open, decided by what the data is. docs/accuracy.md has the measurements behind the numbers."""

from __future__ import annotations

from typing import Any

from .config import Config
from .data import Data, Dataset, Tokens
from .sampler import resolve_output

SEVERAL_LABELS = 1.5  # labels of a row, on average, from which on they are taken not to exclude each other

ROWS: dict[str, Any] = {  # rows of features with labels
    "dropout_input": 0.1, "dropout_hidden": 0.3, "links": 64, "link_power": 1.0, "link_boost": 1.0, "link_scale": 30.0
}  # fmt: skip
# Users with their items. Links count rare items less: more of a list's places are for what many go to. What links say
# is worth more of items that a user hasn't had yet than of those in training.
ITEMS = ROWS | {"dropout_input": 0.3, "dropout_hidden": 0.2, "links": 256, "link_power": 0.5, "link_boost": 4.0,
                "link_scale": 10.0}  # fmt: skip
WORDS = ROWS | {"dropout_input": 0.0, "dropout_hidden": 0.0, "links": 0}  # a stream: a row has one feature


def settled(config: Config) -> Config:
    """The options with those decided that are left open, where nothing is known of the data."""
    return _settled(config, ROWS)


def for_data(config: Config, data: Data) -> Config:
    """The options with those decided that are left open, for this data. The loss is sigmoid where rows have several
    labels and all outputs are computed, else softmax."""
    if isinstance(data, Tokens):
        return _settled(config, WORDS)
    assert isinstance(data, Dataset)
    if data.users is not None:
        return _settled(config, ITEMS)
    _, labels_per_row = data.values_per_row
    several = labels_per_row > SEVERAL_LABELS and resolve_output(config, data.labels) == "full"
    if config.loss == "auto" and several:
        config = config.replace(loss="sigmoid")
    return _settled(config, ROWS)


def _settled(config: Config, numbers: dict[str, Any]) -> Config:
    changes = {name: number for name, number in numbers.items() if getattr(config, name) < 0}
    if config.loss == "auto":
        changes["loss"] = "softmax"
    if config.activation == "auto":
        changes["activation"] = "relu" if len(config.hidden) > 1 else "linear"
    return config.replace(**changes) if changes else config
