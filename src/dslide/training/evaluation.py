"""Measuring on test data while a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dslide.training.trainer import Callback, TestInfo

if TYPE_CHECKING:
    from dslide.data import Data
    from dslide.training.trainer import EpochInfo, Trainer

_CHOICE = 0x74657374  # tells the random choice of test rows from other random numbers of the same seed


class Testing(Callback):
    """Measures at the end of every so many epochs, on at most so many rows (0: all). The last epoch is left out: after
    it the whole test data is measured anyway."""

    def __init__(
        self, measure: Callable[[Data], dict[str, float]], test: Data, every: int, rows: int, seed: int
    ) -> None:
        if 0 < rows < len(test):
            order = np.random.default_rng([seed, _CHOICE]).permutation(len(test))
            test = test.take(np.sort(order[:rows]))
        self._measure, self._test, self._every = measure, test, every
        self._seconds = 0.0  # of training

    def on_epoch(self, trainer: Trainer, info: EpochInfo) -> None:
        self._seconds += info.seconds
        if info.epoch % self._every or info.epoch >= trainer.config.epochs:
            return
        tested = TestInfo(info.epoch, self._seconds, self._measure(self._test))
        for callback in trainer.callbacks:
            callback.on_test(trainer, tested)
