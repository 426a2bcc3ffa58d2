"""Options of a training: those left open decided, and those that may change when it is resumed."""

from __future__ import annotations

from collections.abc import Collection

from dslide.config import Config
from dslide.data import Data
from dslide.model.defaults import as_before, for_data, settled

CHANGEABLE = (  # when a run is resumed
    "epochs", "learning_rate", "threads", "wire", "micro_batches", "watchdog", "checkpoint_seconds", "checkpoints_kept",
)  # fmt: skip


def resolved(config: Config, labels: int, data: Data | None = None) -> Config:
    """The options with those left open decided, from the data if it is there, else from the number of labels."""
    return settled(config, labels) if data is None else for_data(config, data)


def resumed(config: Config, before: Config) -> Config:
    """The options with those left open as they were decided when training began."""
    return as_before(config, before)


def first_change(now: Config, before: Config, names: Collection[str]) -> str | None:
    """The first of these options that differs."""
    return next((name for name in names if getattr(now, name) != getattr(before, name)), None)
