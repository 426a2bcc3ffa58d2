"""What rows held out of training are for. After each epoch the network is measured on them. The best one is kept, and
training ends when it gets no better. At the end the network is calibrated on them."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dslide.data import Data, Dataset
from dslide.data.items import hold_out_items
from dslide.errors import ModelError
from dslide.model.network import Network
from dslide.training.calibration import by_chance, calibrate
from dslide.training.callbacks import ValidationInfo
from dslide.training.evaluation import default_ks, evaluate
from dslide.training.logging import warn
from dslide.training.trainer import Trainer
from dslide.util.arrays import Array

STATE_BYTES = 8  # of a parameter and its optimizer state, about
KEPT_BYTES = 2000  # of state for each row of an epoch: writing more after each epoch takes too much of its time

D = TypeVar("D", bound=Data)


def hold_out_rows(data: D, share: float, seed: int) -> tuple[D | Dataset, Dataset | None]:
    """The rows to train on, and those held out for validation; nothing is copied without these."""
    if share == 0 or not isinstance(data, Dataset):
        return data, None
    train, validation = data.split(share, seed) if data.users is None else hold_out_items(data, share, seed)
    return train, validation.weighted(seed)


def keeps_best(parameters: int, rows: int) -> bool:
    """Whether a run that trains a network on so many rows can afford to keep its best state."""
    return STATE_BYTES * parameters <= KEPT_BYTES * rows


class Keeper(Protocol):
    """Keeps one state of a network. All ranks call its methods together."""

    def keep(self) -> None:
        """Keeps the network as it is now, instead of what was kept before."""

    def restore(self) -> None:
        """Gives the network the state that was kept; ModelError if that can't be had."""


class MemoryKeeper:
    """Keeps a copy of a network in memory."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._kept: dict[str, Array] = {}

    def keep(self) -> None:
        for name, array in self._network.state().items():
            if name in self._kept:
                self._kept[name][...] = array
            else:
                self._kept[name] = array.copy()

    def restore(self) -> None:
        self._network.load_state(self._kept)


@dataclass(frozen=True)
class Best:
    """The best result so far, as checkpoints keep it."""

    epoch: int = 0  # after which it was measured; 0: before the first step
    step: int = 0
    score: float = -1.0  # -1: there is none
    ended: bool = False  # training has, since nothing better came
    start: float = -1.0  # score before the first step, if the network classified rows by then
    is_start: bool = False  # the network is that of before the first step, but of all rows: held-out ones too

    @classmethod
    def of(cls, progress: Mapping[str, Any], folder: Path) -> Best:
        """What `saved` made for a run in this folder; ModelError if it is damaged."""
        saved = progress.get("best")
        if saved is None:
            return cls()
        types = {field.name: field.type for field in dataclasses.fields(cls)}
        if not isinstance(saved, dict) or {name: type(saved[name]).__name__ for name in saved} != types:
            raise ModelError(f"{folder}: damaged: the progress of its training has best: {saved!r:.80}")
        return cls(**saved)

    def saved(self) -> dict[str, Any] | None:
        """Plain values for a checkpoint."""
        return dataclasses.asdict(self) if self.score >= 0 else None


class EarlyStopping:
    """Measures the network on the held-out rows after each epoch: nDCG at the largest of `ks` decides. `label_counts`
    and `rows` are those of the training data. Without a keeper the last network stays."""

    def __init__(
        self, validation: Dataset, label_counts: npt.NDArray[np.integer], rows: int, ks: Sequence[int],
        keeper: Keeper | None, patience: int, warn: Callable[[str], None], best: Best | None = None,
    ) -> None:  # fmt: skip
        self._validation, self._about = validation, (label_counts, rows, ks)
        self._keeper, self._patience, self._warn = keeper, patience, warn
        self.metric = f"ndcg_at_{max(ks)}"
        self.best = best or Best()
        self._last_score = -1.0  # of the last epoch
        self.kept_epoch: int | None = None  # of the network at the end; 0: that of before the first step
        self.linear_cost: float | None = None  # of errors of the linear classifiers at the end; 0: there are none

    @classmethod
    def in_memory(cls, trainer: Trainer, data: Dataset, validation: Dataset) -> EarlyStopping:
        """For a trainer without a run folder, which trains on `data`."""
        about = (data.label_counts, len(data), default_ks(validation))
        return cls(validation, *about, MemoryKeeper(trainer.network), trainer.config.patience, warn)

    def leaves_start(self) -> bool:
        """Training begins or goes on. Whether the network has seen held-out rows and has to start from others again."""
        left = self.best.is_start
        self.best = dataclasses.replace(self.best, is_start=False)
        return left

    def before_training(self, trainer: Trainer) -> None:
        """Measures a network that classifies rows before the first step."""
        self.after_epoch(trainer)
        self.best = dataclasses.replace(self.best, start=self.best.score)

    def after_epoch(self, trainer: Trainer) -> None:
        """Measures the network, keeps it if it is the best, and decides whether training has ended."""
        start = time.perf_counter()
        network = trainer.network
        metrics, _ = evaluate(network.predict_topk, network, self._validation, *self._about)
        score, best = metrics[self.metric], self.best
        if math.isnan(score):  # no held-out row has a label: the last network is as good as any
            score = best.score + 1
        self._last_score = score
        if better := score > best.score:
            best = dataclasses.replace(best, epoch=trainer.epoch, step=trainer.step, score=score)
        ended = trainer.epoch < trainer.config.epochs and trainer.epoch - best.epoch >= self._patience
        self.best = dataclasses.replace(best, ended=ended)
        # The last one is the network at the end, and that of before the first step can be made again.
        if self._keeper and better and 0 < trainer.epoch < trainer.config.epochs:
            self._keeper.keep()
        seconds = time.perf_counter() - start
        trainer.notify(
            "on_validation",
            ValidationInfo(trainer.epoch, trainer.rank_stats().seconds, seconds, self.metric, metrics, better, ended),
        )

    def finish(self, trainer: Trainer, data: Data) -> None:
        """At the end of training on `data`: gives the network its best state and calibrates it. The last one, of a
        smaller learning rate, is kept if the best was better by chance only. If the network classified rows before the
        first step, and no epoch made it better by more than chance, it starts again: from all rows, and stays so."""
        best, self.kept_epoch, score = self.best, trainer.epoch, self.best.score
        if best.epoch < trainer.epoch:
            score = self._last_score
            if self._keeper and best.epoch > 0 and best.score > score + by_chance(len(self._validation)):
                try:
                    self._keeper.restore()
                    self.kept_epoch, score = best.epoch, best.score
                except ModelError as error:
                    self._warn(f"{error}; the network stays as it was after epoch {trainer.epoch}")
            # Training that goes on begins with what is the network of the last step now.
            self.best = dataclasses.replace(best, epoch=trainer.epoch, step=trainer.step, score=score)
        if isinstance(data, Dataset) and 0 <= score <= best.start + by_chance(len(self._validation)):
            self.kept_epoch = 0
            self.best = dataclasses.replace(self.best, score=best.start, is_start=True)
            trainer.set_discriminant(data.and_rows(self._validation))
            return
        label_counts, _, ks = self._about
        info = calibrate(
            trainer.network, self._validation, label_counts, ks, data if isinstance(data, Dataset) else None
        )
        self.linear_cost = info.linear_cost
        trainer.notify("on_calibration", info)
