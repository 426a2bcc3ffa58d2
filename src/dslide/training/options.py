"""Options that may change when a training is resumed."""

from __future__ import annotations

from collections.abc import Collection

from dslide.config import Config

CHANGEABLE = (
    "epochs", "learning_rate", "threads", "wire", "micro_batches", "watchdog", "checkpoint_seconds", "checkpoints_kept",
)  # fmt: skip


def first_change(now: Config, before: Config, names: Collection[str]) -> str | None:
    """The first of these options that differs."""
    return next((name for name in names if getattr(now, name) != getattr(before, name)), None)
