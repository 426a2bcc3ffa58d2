"""Options that gradients can't learn, decided within a time budget: networks with other options are trained, and
compared on rows that they were not trained on. What is tried is always a single change of the best options so far.
Which changes, and in which order, follows from the data, the seed and how many trials were finished; only that number
depends on time.

Single changes seldom differ by more than chance, but several together may. So a change is kept if it is better by a
little; at the end the best options are used only if they are better than the defaults by more than chance.

On large data a change is first tried on a sample of the rows. Fewer rows for each label favour more regularisation and
more epochs, so a sample can't decide: what is no better there is dropped, what is better is tried on all rows.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dslide.comm import Communicator
from dslide.comm.votes import Vote
from dslide.config import Config
from dslide.data import Data, Dataset
from dslide.errors import ConfigError, Diverged, MemoryNeeded, Terminated
from dslide.model.defaults import ResolvedConfig, is_open, resolve
from dslide.model.label_prior import has_label_prior, has_trained_prior
from dslide.training.calibration import by_chance
from dslide.training.callbacks import CalibrationInfo, Callback, TrialInfo
from dslide.training.early_stopping import EarlyStopping, MemoryKeeper, hold_out_rows, keeps_best
from dslide.training.evaluation import default_ks
from dslide.training.logging import warn
from dslide.training.run import terminated_ranks
from dslide.training.trainer import Trainer
from dslide.util.signals import deferred_interrupt

# Values of each option, ascending; the next ones above and below the present value are tried. In order of importance.
SPACE: dict[str, tuple[Any, ...]] = {
    "loss": ("sigmoid", "softmax"),
    "epochs": (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100),
    "prior_learning_rate": (0.25, 0.5, 1.0, 2.0, 3.0, 5.0),
    "prior_boost": (1.0, 2.0, 4.0, 8.0, 16.0),
    "prior_power": (0.0, 0.25, 0.5, 0.75, 1.0),
    "dropout_hidden": (0.0, 0.1, 0.2, 0.3, 0.5),
    "dropout_input": (0.0, 0.1, 0.2, 0.3, 0.5),
    "hidden": ((128,), (256,), (512,), (1024,)),
    "learning_rate": (0.0125, 0.025, 0.05, 0.1),
    "prior_labels": (32, 64, 128, 256, 512),
    "prior_hits": (4, 8, 16, 32),
    "random_negatives": (512, 1024, 2048, 4096, 8192),
    "linear_negatives": (32, 64, 128, 256),
    "batch_size": (64, 128, 256, 512, 1024),
    "prior_scale": (5.0, 10.0, 20.0),
}
# Trials are compared on more rows than are held out otherwise, which are too few to tell small differences from chance.
HELD_OUT, MOST_HELD_OUT = 3, 0.15  # times as many, but not more than this share of the rows
LEAST_GAIN = 0.25  # of a change that is kept, as a share of what chance gives: changes often cost time
LARGE = 100_000  # rows from which on changes are tried on a sample first
SAMPLE = 4  # one row in so many
_CHOICE = 0x73616D70  # the random choice of the sample is a stream of its own

WORST = -1.0  # score that is worse than any

CheckMemory = Callable[[ResolvedConfig], None]  # MemoryNeeded, on all ranks, if a network can't be trained here


@dataclass(frozen=True)
class Tuned:
    """The outcome."""

    config: ResolvedConfig  # the best options
    options: dict[str, Any]  # to give instead of autotune, for the same training; empty: the defaults are kept
    trials: list[TrialInfo]
    metric: str  # that networks are compared by
    held_out: int  # rows on which
    score: float | None  # of the best after training on all other rows, though perhaps by chance; None: unknown
    default_score: float | None  # the same of the defaults
    seconds: float
    ended: str  # why: "time", "interrupted", or "done" if nothing was left to try

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as checkpoints and summaries keep them."""
        values = {name: value for name, value in vars(self).items() if name != "config"}
        return values | {"trials": [vars(trial) for trial in self.trials]}


def given_options(config: Config) -> dict[str, Any]:
    """The options of a Config object that count as given. It can't tell a default that is given from one that is not:
    with autotune, those of options that may be tried count as not given."""
    free = SPACE if config.autotune else ()
    default = {field.name: field.default for field in dataclasses.fields(config)}
    return {
        name: v for name, v in config.to_dict().items() if name not in free or getattr(config, name) != default[name]
    }


def autotune(
    config: Config, given: Collection[str], data: Data, comm: Communicator, check_memory: CheckMemory, *,
    ks: Sequence[int] | None = None, callbacks: Sequence[Callback] = (), trial_callbacks: Sequence[Callback] = (),
    most_trials: int = sys.maxsize,
) -> Tuned:  # fmt: skip
    """The best options for this data that trials of `config.autotune` seconds in all find, if they are better than the
    defaults by more than chance. Options among `given` that are not open stay as they are. ConfigError if there is
    nothing to compare on or nothing to try. After Ctrl-C the best so far are returned; Terminated after SIGTERM. All
    ranks call it together, and rank 0's clock counts.

    `callbacks` receive what each trial gave, `trial_callbacks` what its training reports."""
    search = _Search(config, given, data, comm, check_memory, ks or default_ks(data), callbacks, trial_callbacks)
    with deferred_interrupt() as interrupted:
        ended = search.run(interrupted, most_trials)
    if lost := terminated_ranks(comm):
        who = f"{', '.join(lost.values())} received SIGTERM after {len(search.trials)} trials of autotune"
        raise Terminated(f"{who}; nothing is saved", list(lost))
    return search.outcome(ended)


class _Ended(Exception):
    """The search has to end: for lack of time, or because of Ctrl-C."""


class _Watch(Callback):
    """Ends a trial when the search has to end, and keeps its score."""

    def __init__(self, must_end: Callable[[], bool]) -> None:
        self._must_end, self.score = must_end, WORST

    def vote(self, trainer: Trainer) -> Vote:
        return Vote.STOP if self._must_end() else Vote.NONE

    def on_calibration(self, trainer: Trainer, info: CalibrationInfo) -> None:
        score = info.after if info.used else info.before
        self.score = WORST if math.isnan(score) else score  # no held-out row has a label


class _Search:
    """Tries single changes of the best options so far, until none is left."""

    def __init__(
        self, config: Config, given: Collection[str], data: Data, comm: Communicator, check_memory: CheckMemory,
        ks: Sequence[int], callbacks: Sequence[Callback], trial_callbacks: Sequence[Callback],
    ) -> None:  # fmt: skip
        self._start = time.monotonic()
        self._asked, self._data, self._comm, self._ks = config, data, comm, ks
        self._check_memory, self._callbacks, self._trial_callbacks = check_memory, callbacks, trial_callbacks
        self._default = self._best = resolve(config, data.labels, data, comm.size)
        self._changes: dict[str, Any] = {}  # of the best
        self._free = [name for name in SPACE if name not in given or is_open(name, getattr(config, name))]
        if not isinstance(data, Dataset) or self._default.validation == 0:
            why = "of these" if isinstance(data, Dataset) else "of a stream of words"
            raise ConfigError(f"autotune: compares networks on held-out rows, and {why} none are held out (validation)")
        if not any(name in self._free for name in _meaningful(self._default)):
            raise ConfigError("autotune: there is nothing to try, since all options that it could change are given")
        check_memory(self._default)
        share = max(self._default.validation, min(HELD_OUT * self._default.validation, MOST_HELD_OUT))
        rows, held_out = hold_out_rows(data, share, config.seed)
        assert isinstance(rows, Dataset)
        assert held_out is not None
        self._held_out = held_out
        self._rungs = [rows]  # what is trained on, from few rows to all
        if len(rows) >= LARGE:
            order = np.random.default_rng([config.seed, _CHOICE]).permutation(len(rows))
            self._rungs.insert(0, rows.take(np.sort(order[: len(rows) // SAMPLE])))
        self._seen = {self._default}  # what needs not be tried any more
        self._scores: dict[tuple[ResolvedConfig, int], float] = {}  # by options and rung
        self._seconds_of_row = math.inf  # of an epoch, in the fastest trial
        self.trials: list[TrialInfo] = []

    def run(self, interrupted: Callable[[], bool], most_trials: int) -> str:
        """Searches until nothing is left to try, or until it has to end; returns why."""
        self._interrupted, self._most = interrupted, most_trials
        position = 0  # in the options that may change: a change that was good is taken further at once
        try:
            while (found := self._next(position)) is not None:
                position, changes, config = found
                self._seen.add(config)
                if self._is_better(config, changes):
                    self._best, self._changes = config, changes
            return "done"
        except _Ended:
            return "interrupted" if any(self._comm.gather_objects("interrupted", interrupted())) else "time"

    def outcome(self, ended: str) -> Tuned:
        """What was found. Frees the memory of a trial that was ended."""
        gc.collect()
        score, default = (self._scores.get((config, len(self._rungs) - 1)) for config in (self._best, self._default))
        config, options = self._default, {}
        if score is not None and default is not None and self._exceeds(score, default, 1.0):
            config = self._best
            options = self._changes | {"validation": config.validation}  # which else may depend on what changed
        about = (f"ndcg_at_{max(self._ks)}", len(self._held_out), score, default)
        return Tuned(config, options, self.trials, *about, time.monotonic() - self._start, ended)

    def _next(self, position: int) -> tuple[int, dict[str, Any], ResolvedConfig] | None:
        """The next change to try, from a position in the options on: the position, all changes, and the options."""
        meaningful = _meaningful(self._best)
        for offset in range(len(self._free)):
            at = (position + offset) % len(self._free)
            if (name := self._free[at]) not in meaningful:
                continue
            for value in _nearest(SPACE[name], getattr(self._best, name)):
                changes = self._changes | {name: value}
                config = self._resolved(changes)
                if config is not None and config not in self._seen:
                    return at, changes, config
        return None

    def _resolved(self, changes: Mapping[str, Any]) -> ResolvedConfig | None:
        """The options with these changes, and the same rows held out; None if they are impossible."""
        try:
            config = self._asked.replace(**changes, validation=self._default.validation)
            config = resolve(config, self._data.labels, self._data, self._comm.size)
            if config not in self._seen:
                self._check_memory(config)
            return config
        except (ConfigError, MemoryNeeded):
            return None

    def _is_better(self, config: ResolvedConfig, changes: Mapping[str, Any]) -> bool:
        """Whether options are better than the best so far, on a sample of the rows, if there is one, and on all."""
        for rung in range(len(self._rungs)):
            best = self._score(self._best, rung, self._changes)
            if not self._exceeds(self._score(config, rung, changes, best), best, LEAST_GAIN):
                return False
        return True

    def _exceeds(self, score: float, other: float, share: float) -> bool:
        """Whether a score is better by more than a share of what chance gives."""
        return score > other + share * by_chance(len(self._held_out))

    def _score(self, config: ResolvedConfig, rung: int, changes: Mapping[str, Any], best: float | None = None) -> float:
        """The score of options after training on the rows of a rung, in a trial unless it is known. `best` is what it
        has to exceed; None for the best options so far themselves."""
        if (config, rung) not in self._scores:
            rows, begin = self._rungs[rung], time.monotonic()
            self._check_time(len(rows) * config.epochs)
            score = self._train(config, rows)
            gc.collect()  # memory may not hold two networks
            seconds = time.monotonic() - begin
            self._seconds_of_row = min(self._seconds_of_row, seconds / (len(rows) * config.epochs))
            self._scores[config, rung] = score
            better = None if best is None else self._exceeds(score, best, LEAST_GAIN)
            self.trials.append(TrialInfo(len(self.trials) + 1, dict(changes), len(rows), score, best, better, seconds))
            for callback in self._callbacks:
                callback.on_trial(self.trials[-1])
        return self._scores[config, rung]

    def _check_time(self, row_epochs: int) -> None:
        """_Ended, on all ranks, if there is no time for a trial of so many rows, or after Ctrl-C."""
        least = self._seconds_of_row * row_epochs if self.trials else 0.0
        enough = self._left() > least and len(self.trials) < self._most
        answers = self._comm.gather_objects("another trial", [enough, self._interrupted()])
        if not answers[0][0] or any(interrupted for _, interrupted in answers):
            raise _Ended

    def _left(self) -> float:
        return self._start + self._asked.autotune - time.monotonic()

    def _must_end(self) -> bool:
        return self._interrupted() or (self._comm.rank == 0 and self._left() < 0)

    def _train(self, config: ResolvedConfig, rows: Dataset) -> float:
        """Trains a network as it would be trained outside of a trial; returns its score as rank 0 has it."""
        watch = _Watch(self._must_end)
        callbacks = [watch, *self._trial_callbacks]
        trainer = Trainer(config, rows.features, rows.labels, comm=self._comm, callbacks=callbacks)
        keeper = MemoryKeeper(trainer.network) if keeps_best(trainer.network.parameters, len(rows)) else None
        about = (rows.label_counts, len(rows), self._ks)
        try:
            early_stopping = EarlyStopping(self._held_out, *about, keeper, config.patience, warn)
            if trainer.fit(rows, early_stopping).interrupted:
                raise _Ended
        except Diverged:
            if self._comm.size > 1:  # another rank may not have noticed
                raise
            watch.score = WORST
        return float(self._comm.gather_objects("score", watch.score)[0])


def _meaningful(config: ResolvedConfig) -> list[str]:
    """The options that make a difference to a network."""
    prior, trained = has_label_prior(config), has_trained_prior(config)
    sampled = config.output != "full" and config.active_sets == "shared"
    needs = {
        "prior_labels": prior, "prior_scale": prior, "prior_learning_rate": trained, "prior_hits": trained and sampled,
        "prior_boost": prior and not trained, "prior_power": prior and not trained,
        "linear_negatives": prior and config.linear_negatives > 0, "random_negatives": sampled,
        "hidden": len(config.hidden) == 1,
    }  # fmt: skip
    return [name for name in SPACE if needs.get(name, True)]


def _nearest(values: Sequence[Any], value: Any) -> list[Any]:
    """The next value above, and the next one below."""
    return [v for v in values if v > value][:1] + [v for v in values if v < value][-1:]
