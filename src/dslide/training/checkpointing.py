"""Checkpoints as a callback of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dslide.checkpoint.manager import CheckpointManager
from dslide.checkpoint.saved_model import SavedModel
from dslide.comm.votes import Vote
from dslide.training.callbacks import Callback, StepInfo
from dslide.training.trainer import Trainer


class Checkpointing(Callback):
    """Writes checkpoints of a trainer's run to its folder while it trains, as its options say; `manager` saves at other
    times. `model`, `warn` and `last` are as in `CheckpointManager`."""

    def __init__(
        self, trainer: Trainer, run: Path, model: Callable[[], SavedModel], warn: Callable[[str], None],
        last: Path | None = None,
    ) -> None:  # fmt: skip
        def on_complete(step: int) -> None:
            for callback in trainer.callbacks:
                callback.on_checkpoint(trainer, step)

        config = trainer.config
        self.manager = CheckpointManager(
            run, trainer.comm, trainer, model, seconds=config.checkpoint_seconds, kept=config.checkpoints_kept,
            warn=warn, on_complete=on_complete, last=last,
        )  # fmt: skip

    def vote(self, trainer: Trainer) -> Vote:
        return self.manager.vote()

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        self.manager.after_step(trainer.votes)
