"""Options that are left open, decided by what the data is."""

from __future__ import annotations

from .config import Config
from .data import Data, Dataset
from .sampler import resolve_output

FEW_LABELS = 1.5  # labels of a row, on average, up to which they are taken to exclude each other


def settled(config: Config) -> Config:
    """The options with those decided that are left open, where nothing is known of the data."""
    return config.replace(
        loss="softmax" if config.loss == "auto" else config.loss,
        link_power=1.0 if config.link_power < 0 else config.link_power,
        link_boost=1.0 if config.link_boost < 0 else config.link_boost,
    )


def for_data(config: Config, data: Data) -> Config:
    """The options with those decided that the data decides; docs/accuracy.md has the measurements behind it.

    - loss: sigmoid where rows have several labels and all outputs are computed, else softmax
    - link_power, link_boost: for users with their items, links count less for rare items, and more in prediction
    """
    items = isinstance(data, Dataset) and data.users is not None
    if config.loss == "auto" and isinstance(data, Dataset) and not items:
        _, labels_per_row = data.values_per_row
        if labels_per_row > FEW_LABELS and resolve_output(config, data.labels) == "full":
            config = config.replace(loss="sigmoid")
    if items and config.link_power < 0:
        config = config.replace(link_power=0.5)
    if items and config.link_boost < 0:
        config = config.replace(link_boost=4.0)
    return settled(config)
