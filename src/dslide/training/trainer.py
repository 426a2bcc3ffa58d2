"""The training loop: epochs, batches, learning rate, rebuilds of hash tables, callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dslide.comm import Communicator, solo
from dslide.comm.agreement import check_agreement
from dslide.comm.topology import local_ranks
from dslide.comm.votes import NO_VOTES, Vote, Votes
from dslide.config import Config
from dslide.data import Data, Dataset, Features, Rows, SparseRows
from dslide.errors import DataError, ModelError
from dslide.model.defaults import FEW_ROWS, MOST_DENSE, resolve
from dslide.model.label_prior import has_label_prior
from dslide.model.network import Network
from dslide.training import phases
from dslide.training.calibration import mix_equally
from dslide.training.callbacks import Callback, EpochInfo, FitResult, StepInfo
from dslide.training.load_balance import RankStats, load_balance
from dslide.training.metrics import inverse_propensities
from dslide.training.profiler import Profile, attach
from dslide.training.schedules import RebuildSchedule, learning_rate
from dslide.training.work import reading
from dslide.util.signals import deferred_interrupt
from dslide.util.threads import use_threads

if TYPE_CHECKING:
    from dslide.training.early_stopping import EarlyStopping

RowIds = npt.NDArray[np.signedinteger]


class Trainer:
    """Trains a network on a dataset.

    Everything random is a function of the seed and the step: training that is interrupted at any step and resumed from
    its saved state gives the same weights as training that was not.

    With a communicator of several ranks (`comm.job()` inside mpiexec) the network is split over them. Every rank then
    creates a trainer with the same options and calls `fit` with the same data.
    """

    def __init__(
        self, config: Config, features: int, labels: int, *, comm: Communicator | None = None,
        callbacks: Sequence[Callback] = (), profile: Profile | None = None,
    ):  # fmt: skip
        self.config = config = resolve(config, labels)
        self.comm = comm or solo()
        self._use_threads()
        self.network = Network(config, features, labels, comm=self.comm)
        self.profile = profile
        if profile is not None:
            attach(profile, self.network)
        self.callbacks = list(callbacks)
        self.step = 0  # steps done
        self.epoch = 0  # epochs done
        self.position = 0  # rows done of the present epoch
        self.samples = 0  # rows trained on in all
        self._rebuilds = RebuildSchedule(config.rebuild_every, config.rebuild_growth)
        self._interrupted: Callable[[], bool] = _never  # whether Ctrl-C was pressed
        self.votes = NO_VOTES  # of the last step: see Callback.vote
        self.rate = config.learning_rate  # of the last step
        self.counted: tuple[npt.NDArray[np.int64], int] | None = None  # of a network that grew: as in `GrowingData`
        self._own_active = 0.0  # active output neurons of this rank, summed over steps
        self._start = self._clocks()  # what `rank_stats` counts from

    # ---- training -------------------------------------------------------------------------------------------------

    def fit(self, data: Data, early_stopping: EarlyStopping | None = None) -> FitResult:
        """Runs the remaining epochs of `config.epochs`, fewer if early stopping ends them; the network is then the best
        one on the held-out rows. On Ctrl-C it finishes the present step, and the result is marked as interrupted;
        another call resumes. Where epochs have different numbers of rows, the schedule of the learning rate assumes as
        many as in the first for all.

        Parameters
        ----------
        data : Dataset or Tokens
            What to train on.
        early_stopping : EarlyStopping
            Rows that were held out, and how to choose the best epoch; by default training does all epochs.

        Returns
        -------
        FitResult
            Loss, time and speed.

        Raises
        ------
        Diverged
            A number that is not finite came up.
        Terminated
            SIGTERM.
        """
        self._use_threads()
        self._check(data)
        total_steps = self._total_steps(data)
        starts_again = early_stopping is not None and early_stopping.leaves_start()
        if (self.step == 0 and self.counted is None) or starts_again:
            self._learn_statistics(_weighted(data, self.config.seed))
        self.notify("on_start", total_steps)
        totals = _Totals()
        interrupted = self._run_epochs(data, total_steps, totals, early_stopping)
        if early_stopping is not None and not interrupted:
            with deferred_interrupt():  # nothing is left to be interrupted; a second Ctrl-C is answered at once
                early_stopping.finish(self, _weighted(data, self.config.seed))
        elif isinstance(data, Dataset) and len(data) < FEW_ROWS and not interrupted:
            mix_equally(self.network, data.weighted(self.config.seed), data.label_counts)
        if self.network.index is not None and not interrupted:
            self.network.prediction_index()  # is saved with the network
        self.set_worth(*(self.counted or (data.label_counts, len(data))))
        stats = self.rank_stats()
        result = FitResult(
            stats.seconds, totals.samples, totals.steps, self.epoch, totals.samples / max(stats.seconds, 1e-9),
            totals.active / max(totals.steps, 1), totals.loss, interrupted,
            load_balance(self.comm, stats, totals.steps),
        )  # fmt: skip
        self.notify("on_end", result)
        return result

    def set_worth(self, label_counts: npt.NDArray[np.integer], rows: int) -> None:
        """Sets what labels are worth in predictions, from the rows of each in the training data of `rows` rows."""
        if self.config.ranking == "propensity":
            worth = inverse_propensities(label_counts, rows)
            self.network.calibration.set_worth(self.network.shard.part(worth))
            self.network.version += 1

    def fit_pass(self, data: Dataset) -> None:
        """One pass over the rows in random order, at a constant learning rate and without callbacks."""
        rows = _shuffled(self._trainable(data, self.step), self.config.seed, self.step)
        self.position = 0
        try:
            for _ in self._steps(data, rows, total_steps=0):
                pass
        finally:
            self.position = 0

    def train_batch(self, x: Features, y: SparseRows, total_steps: int) -> StepInfo:
        """One step on the given rows. `total_steps` is what the learning-rate schedule runs over; 0: unknown, and the
        rate is constant.

        Parameters
        ----------
        x : rows (rows, features)
        y : SparseRows
            Weights of the labels of each row.
        total_steps : int
            Steps of the whole training, or 0.

        Returns
        -------
        StepInfo
            Loss, active neurons, learning rate and time.

        Raises
        ------
        Diverged
            A number that is not finite came up.
        """
        if self._rebuilds.due(self.step):
            self.network.rebuild_tables()
        rate = learning_rate(self.config, self.step, total_steps)
        vote = reduce(or_, (c.vote(self) for c in self.callbacks), Vote.STOP if self._interrupted() else Vote.NONE)
        result = self.network.train_step(x, self.network.loss.targets(y), self.step, rate, vote)
        self.votes, self.rate = result.votes, rate
        if self.comm.size == 1 and self._interrupted():
            self.votes = Votes(self.votes.any | Vote.STOP, self.votes.all | Vote.STOP)
        self._own_active += result.own_active
        self.step += 1
        if self.profile:
            self.profile.steps += 1
        self.samples += len(x)
        return StepInfo(self.step, result.loss, result.active, rate, len(x))

    def reconfigure(self, config: Config) -> None:
        """Changes options of a training that has begun: learning_rate, batch_size, epochs, threads, wire,
        micro_batches and watchdog count from the next step on; others must not differ. All ranks call it together."""
        if self.comm.size > 1:
            check_agreement(self.comm, config, {"the number of steps done": self.step})
        self.config = config = resolve(config, self.network.labels)
        self.network.reconfigure(config)
        self.comm.limit = config.watchdog
        self._use_threads()

    def _run_epochs(self, data: Data, total_steps: int, totals: _Totals, early_stopping: EarlyStopping | None) -> bool:
        """Runs the remaining epochs; returns whether Ctrl-C ended them early."""
        self._start = self._clocks()
        if self.profile:
            self.profile.begin(self.comm)
        try:
            with deferred_interrupt() as interrupted:
                self._interrupted = interrupted
                if early_stopping is not None and self.step == 0 and self._starts_as_classifier:
                    early_stopping.before_training(self)
                while self.epoch < self.config.epochs and not (early_stopping and early_stopping.best.ended):
                    self._run_epoch(data, total_steps, totals)
                    if early_stopping is not None:
                        early_stopping.after_epoch(self)
            return False
        except KeyboardInterrupt:
            return True
        finally:
            self._interrupted = _never
            if self.profile:
                self.profile.end()

    def _run_epoch(self, data: Data, total_steps: int, totals: _Totals) -> None:
        """Trains on what is left of the present epoch. KeyboardInterrupt if a rank was interrupted."""
        start = time.perf_counter()
        totals.begin_epoch()
        rows = data.epoch(self.epoch, self.config.seed)
        order = _shuffled(self._trainable(rows, self.epoch), self.config.seed, self.epoch)
        for info in self._steps(rows, order, total_steps):
            totals.add(info)
            self.notify("on_step", info)
            if self.votes.any & Vote.STOP:
                raise KeyboardInterrupt
        seconds = time.perf_counter() - start
        ended = EpochInfo(self.epoch, totals.loss, seconds, totals.epoch_rows / max(seconds, 1e-9))
        with self._paused_clocks():
            self.notify("on_epoch", ended)

    def _steps(self, rows: Rows, order: RowIds, total_steps: int) -> Iterator[StepInfo]:
        """Trains on what is left of an epoch, whose rows come in this order; then the epoch is counted as done."""
        for begin in range(self.position, len(order), self.config.batch_size):
            x, y = self._take(rows, order[begin : begin + self.config.batch_size])
            info = self.train_batch(x, y, total_steps)
            self.position += info.rows
            yield info
        self.epoch, self.position = self.epoch + 1, 0

    # ---- data -----------------------------------------------------------------------------------------------------

    def _take(self, rows: Rows, batch: RowIds) -> tuple[Features, SparseRows]:
        if self.profile is None:
            return rows.batch(batch)
        with self.profile.phase(phases.READING, lambda: reading(x, y)):
            x, y = rows.batch(batch)
        return x, y

    def _check(self, data: Data) -> None:
        """DataError if the data does not fit the network, ConfigError if ranks differ in data or options."""
        if self.comm.size > 1:
            facts = {"the data (its checksum)": data.checksum, "the number of steps done": self.step}
            check_agreement(self.comm, self.config, facts)
        for what in ("features", "labels"):
            have, limit = getattr(data, what), getattr(self.network, what)
            if have > limit:
                raise DataError(f"{data.source}: the data has {have} {what} but the network was made for {limit}")

    def _total_steps(self, data: Data) -> int:
        """Steps from the very first to the last of all epochs."""
        first = len(self._trainable(data.epoch(0, self.config.seed), 0))
        if first == 0:
            raise DataError(f"{data.source}: there is no row with a label to learn from")
        return math.ceil(first / self.config.batch_size) * self.config.epochs

    def _learn_statistics(self, data: Data) -> None:
        """Sets what follows from statistics of the data: the linear discriminant, or the output bias and the label
        prior."""
        self.network.set_negatives(data.label_frequencies())
        if self.config.start == "discriminant":
            self.set_discriminant(data)
            return
        self.network.set_output_bias(data.label_frequencies())
        if isinstance(data, Dataset) and data.dense_features < data.features and has_label_prior(self.config):
            self.network.set_label_prior(data.x, data.y, same=data.users is not None)

    def set_discriminant(self, data: Data) -> None:
        """Gives the network the linear discriminant of the data to start from."""
        if not isinstance(data, Dataset) or data.users is not None or data.features > MOST_DENSE:
            what = f"start = discriminant is for rows of at most {MOST_DENSE:,} features with labels"
            raise DataError(f"{data.source or 'the data'}: {what}; use start = random")
        self.network.set_discriminant(data)

    @property
    def _starts_as_classifier(self) -> bool:
        """Whether the network classifies rows before the first step, as the linear discriminant does."""
        return self.config.start == "discriminant" and self.network.loss.needs_labels and self.counted is None

    def _trainable(self, rows: Rows, number: int) -> RowIds:
        """Rows to train on in an epoch: softmax learns nothing from a row without labels. Rows with weights may be
        there several times, or not at all."""
        ids = rows.with_labels() if self.network.loss.needs_labels else np.arange(len(rows))
        times = rows.times_in_epoch(self.config.seed, number) if isinstance(rows, Dataset) else None
        return ids if times is None else np.repeat(ids, times[ids])

    # ---- progress -------------------------------------------------------------------------------------------------

    def progress(self) -> dict[str, int]:
        """Where training stands, for `load_progress`.

        Returns
        -------
        dict of int
        """
        return {"step": self.step, "epoch": self.epoch, "position": self.position, "samples": self.samples}

    def load_progress(self, progress: dict[str, int]) -> None:
        """Continues from `progress`; the network's state is loaded separately.

        Parameters
        ----------
        progress : dict of int
            What `progress` gave.
        """
        if missing := [key for key in self.progress() if key not in progress]:
            raise ModelError(f"the progress of the training to resume lacks {missing[0]}")
        self.step, self.epoch = progress["step"], progress["epoch"]
        self.position, self.samples = progress["position"], progress["samples"]
        self._rebuilds.skip_to(self.step)

    def rank_stats(self) -> RankStats:
        """Totals of this rank since `fit` was called, without callbacks at the ends of epochs."""
        seconds, waited, in_flight, sent, active = (self._clocks() - self._start).tolist()
        return RankStats(seconds, waited, in_flight, int(sent), active)

    def _clocks(self) -> npt.NDArray[np.float64]:
        """Time now in seconds, and the totals so far of seconds of waiting, seconds of exchanges, bytes sent, and
        active output neurons of this rank summed over steps."""
        comm = self.comm
        return np.array(
            [time.perf_counter(), comm.wait_seconds, comm.flight_seconds, comm.bytes_sent, self._own_active], np.float64
        )

    @contextmanager
    def _paused_clocks(self) -> Iterator[None]:
        """Excludes what is done inside from `rank_stats` and from the profile."""
        paused = self._clocks()
        if self.profile:
            self.profile.end()
        try:
            yield
        finally:
            if self.profile:
                self.profile.begin(self.comm)
            self._start += self._clocks() - paused

    def notify(self, event: str, about: Any) -> None:
        """Calls the method of this name of every callback."""
        for callback in self.callbacks:
            getattr(callback, event)(self, about)

    def _use_threads(self) -> None:
        use_threads(self.config.threads or local_ranks(self.comm).threads)


@dataclass
class _Totals:
    """Sums over the steps of a call of `Trainer.fit`."""

    samples: int = 0
    steps: int = 0
    active: float = 0.0  # active output neurons of a row
    epoch_rows: int = 0
    _epoch_loss: float = 0.0  # summed over rows
    _last_loss: float = math.nan  # mean of the epoch before

    def begin_epoch(self) -> None:
        self._last_loss, self.epoch_rows, self._epoch_loss = self.loss, 0, 0.0

    def add(self, info: StepInfo) -> None:
        self.samples, self.steps, self.active = self.samples + info.rows, self.steps + 1, self.active + info.active
        self.epoch_rows, self._epoch_loss = self.epoch_rows + info.rows, self._epoch_loss + info.loss * info.rows

    @property
    def loss(self) -> float:
        """Mean over the rows of the present epoch, or of the one before if there are none yet."""
        return self._epoch_loss / self.epoch_rows if self.epoch_rows else self._last_loss


def _weighted(data: Data, seed: int) -> Data:
    """The rows as often as they count, to count labels and to train linear classifiers."""
    return data.weighted(seed) if isinstance(data, Dataset) else data


def _shuffled(rows: RowIds, seed: int, number: int) -> RowIds:
    """The rows in a random order that follows from the seed and the number of the epoch, or step, alone."""
    return np.random.default_rng([seed, number]).permutation(rows)


def _never() -> bool:
    return False
