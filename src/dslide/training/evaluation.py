"""Evaluation on test data: once, and during a run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from dslide.checkpoint.saved_model import SavedModel
from dslide.data import Data, Features, SparseRows
from dslide.data.items import SplitBy
from dslide.errors import ConfigError
from dslide.model.network import Network
from dslide.training.callbacks import Callback, EpochInfo, TestInfo
from dslide.training.metrics import KS, RECOMMENDATION_KS, Evaluation
from dslide.training.reading import Source
from dslide.training.trainer import Trainer

BLOCK_ROWS = 4096  # predicted together: bounds the memory that predictions of a large file need
MOST_K = 10_000
_CHOICE = 0x74657374  # the random choice of test rows is a stream of its own

Ids = npt.NDArray[np.int32]  # (rows, k)
Predict = Callable[[Features, int, SparseRows | None], tuple[Any, Any]]


@dataclass(frozen=True)
class EvaluationOptions:
    """What a run is evaluated on, and when. ConfigError for values that make no sense, or not together."""

    test: Source | None = None  # test data
    hold_out: float | None = None  # share of the rows to evaluate on instead of training on them
    split: SplitBy = "random"  # how interactions are held out; "last" needs no share
    every: int = 0  # evaluate after every so many epochs too; 0: only at the end
    rows: int = 0  # test rows, chosen at random, that `every` evaluates on; 0: all
    ks: tuple[int, ...] | None = None  # None: as the data suggests

    def __post_init__(self) -> None:
        if self.hold_out is not None and not 0 < self.hold_out < 1:
            raise ConfigError(f"hold_out: expected a share above 0 and below 1, not {self.hold_out:g}")
        if self.split not in get_args(SplitBy):
            raise ConfigError(f"split: expected one of {', '.join(get_args(SplitBy))}, not {self.split!r}")
        if self.split == "time" and self.hold_out is None:
            raise ConfigError("split: give as hold_out which share of the interactions, the newest, to hold out")
        if self.split == "last" and self.hold_out is not None:
            raise ConfigError("hold_out: split = last holds out one interaction of each user, and no share of them")
        if self.holds_out and self.test is not None:
            given = "hold_out" if self.hold_out is not None else "split"
            raise ConfigError(f"{given}: there is test data already, given as test")
        for name, value in (("test_every", self.every), ("test_rows", self.rows)):
            if value < 0:
                raise ConfigError(f"{name}: expected at least 0, not {value}")
        if self.rows and not self.every:
            raise ConfigError("test_rows: is for evaluation during the run, but test_every is not given")

    @property
    def holds_out(self) -> bool:
        """Whether a part of the training data is the test data."""
        return self.hold_out is not None or self.split == "last"

    def like(self, saved: SavedModel | None) -> EvaluationOptions:
        """The options with what the resumed run holds out; ConfigError if what is given does not agree with it, or if
        there is nothing to evaluate on."""
        share, split = self.hold_out, self.split
        if saved is not None:
            begun: float | None = saved.progress.get("hold_out")
            shown = "none" if begun is None else f"{begun:g}"
            if share not in (None, begun):
                raise ConfigError(f"hold_out: the run was begun with {shown}, and on resuming that can't change")
            if begun is not None and self.test is not None:
                raise ConfigError(f"test: the run was begun with hold_out {shown}, and is tested on those rows")
            share, before = begun, saved.progress.get("split", "random")
            if split not in ("random", before):
                raise ConfigError(f"split: the run was begun with {before}, and on resuming that can't change")
            split = before
        if self.every and share is None and split != "last" and self.test is None:
            raise ConfigError("test_every: there is no test data; give test or hold_out")
        return dataclasses.replace(self, hold_out=share, split=split)


def checked_ks(k: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """The ranks k to report, ascending, if any are given."""
    if k is None:
        return None
    given = [k] if isinstance(k, int) else list(k)
    if not given or not all(isinstance(each, int) and 1 <= each <= MOST_K for each in given):
        raise ConfigError(f"k: expected whole numbers from 1 to {MOST_K} like 1,3,5, not {','.join(map(str, given))!r}")
    return tuple(sorted(set(given)))


def default_ks(data: Data) -> tuple[int, ...]:
    """The ranks k to report if none are given."""
    return KS if data.seen is None else RECOMMENDATION_KS


def row_blocks(rows: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows to predict together."""
    for begin in range(0, rows, BLOCK_ROWS):
        yield begin, min(begin + BLOCK_ROWS, rows)


def evaluate(
    predict: Predict, network: Network, data: Data, label_counts: Any, rows: int, ks: Sequence[int]
) -> tuple[dict[str, float], Ids]:
    """Metrics of a way to predict with its rows_per_second, and the labels it predicts. `label_counts` and `rows` are
    those of the training data."""
    evaluation = Evaluation(ks, label_counts, rows)
    seconds, predicted = 0.0, []
    for begin, end in row_blocks(len(data)):
        x, y = data.rows(begin, end)
        seen = None if data.seen is None else data.seen.part(begin, end)
        start = time.perf_counter()
        ids, _ = predict(x, min(max(ks), network.labels), seen)
        seconds += time.perf_counter() - start
        evaluation.update(ids, y)
        predicted.append(ids)
    return evaluation.result() | {"rows_per_second": len(data) / max(seconds, 1e-9)}, np.concatenate(predicted)


def exact_loss(network: Network, data: Data) -> float:
    """The mean loss over the rows that have labels, over all labels without sampling."""
    total, rows = 0.0, 0
    for begin, end in row_blocks(len(data)):
        loss, counted = network.exact_loss_sum(*data.rows(begin, end))
        total, rows = total + loss, rows + counted
    return total / rows if rows else float("nan")


def recall_of_exact(exact: Ids, approximate: Ids, k: int) -> float:
    """The mean share of each row's exact top k that is also in its approximate top k."""
    pairs = zip(exact[:, :k].tolist(), approximate[:, :k].tolist(), strict=True)
    return sum(len(set(a) & set(b)) for a, b in pairs) / max(exact[:, :k].size, 1)


class PeriodicTest(Callback):
    """Evaluates after every so many epochs, on at most so many rows (0: all). The last epoch is left out: the whole
    test data is evaluated after it anyway."""

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
        trainer.notify("on_test", tested)
