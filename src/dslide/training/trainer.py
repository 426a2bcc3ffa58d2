"""The training loop: batches, learning rate, renewal of hash tables, callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide.comm import Communicator, solo
from dslide.comm.agreement import check_agreement
from dslide.comm.topology import local_ranks
from dslide.comm.votes import Vote, Votes
from dslide.config import Config
from dslide.data import Data, Dataset, Rows, SparseRows
from dslide.errors import DataError, ModelError
from dslide.model.defaults import resolve
from dslide.model.label_prior import has_label_prior
from dslide.model.network import Network
from dslide.training import phases
from dslide.training.load_balance import RankStats, load_balance
from dslide.training.profiler import Profile, attach
from dslide.training.work import reading
from dslide.util.signals import deferred_interrupt
from dslide.util.threads import use_threads


@dataclass(frozen=True)
class StepInfo:
    """A training step just done."""

    step: int  # counted from 1
    loss: float  # mean over the batch's rows
    active: float  # output neurons that a row saw
    learning_rate: float
    rows: int


@dataclass(frozen=True)
class EpochInfo:
    """An epoch just done."""

    epoch: int  # counted from 1
    loss: float  # mean over the epoch's rows
    seconds: float
    samples_per_second: float


@dataclass(frozen=True)
class TestInfo:
    """What the network was measured to do on test data."""

    epoch: int  # after which it was, counted from 1
    seconds: float  # of training, since it began or was resumed, without those of testing
    metrics: dict[str, float]  # as metrics.Evaluation gives them


@dataclass(frozen=True)
class Result:
    """A call of `Trainer.fit`, summed up."""

    seconds: float  # without what callbacks did at the ends of epochs, such as testing
    samples: int
    steps: int
    epochs: int  # finished since training began, earlier calls included
    samples_per_second: float
    active_neurons_mean: float
    loss: float  # mean over the last epoch's rows, as far as it was done in this call
    interrupted: bool
    spread: dict[str, Any]  # how evenly the work was balanced over ranks: see load_balance


class Callback:
    """What wants to hear of training. Every method may be left out."""

    def vote(self, trainer: Trainer) -> Vote:
        """What this rank votes for in the coming step; afterwards `trainer.votes` has the votes of all ranks."""
        return Vote.NONE

    def on_start(self, trainer: Trainer, total_steps: int) -> None:
        """Training begins or goes on; `total_steps` counts from the very first step to the last."""

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        """A step was done."""

    def on_epoch(self, trainer: Trainer, info: EpochInfo) -> None:
        """An epoch was done."""

    def on_test(self, trainer: Trainer, info: TestInfo) -> None:
        """The network was measured on test data."""

    def on_checkpoint(self, trainer: Trainer, step: int) -> None:
        """A checkpoint is complete, of the network as it was after so many steps."""

    def on_end(self, trainer: Trainer, result: Result) -> None:
        """Training is over, or was interrupted."""


class Trainer:
    """Trains a network on a dataset.

    Everything random is a function of the seed and the step, so that training interrupted at any step and taken up from
    saved state goes on as if it had not been.

    With a communicator of several ranks (`comm.job()` inside mpiexec) the network is split over them. Every rank then
    does the same: makes a trainer with the same options, calls `fit` with the same data.
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
        self._pressed: Callable[[], bool] = _never  # whether Ctrl-C was pressed
        self.votes = Votes()  # of the last step: see Callback.vote
        self.rate = config.learning_rate  # of the last step
        self._own_active = 0.0  # active output neurons of this rank, summed over steps
        self._begin = self._clocks()  # the clocks from which time of training counts

    def fit(self, data: Data) -> Result:
        """Runs the epochs that are left of `config.epochs`. On Ctrl-C the step at hand is finished and the result says
        so; calling again goes on. Where epochs have different numbers of rows, the schedule of the learning rate takes
        all to have as many as the first."""
        self._use_threads()
        if self.comm.size > 1:
            facts = {"the data (its checksum)": data.checksum, "the number of steps done": self.step}
            check_agreement(self.comm, self.config, facts)
        self._check_data(data)
        first = len(self._trainable(data.epoch(0, self.config.seed)))
        if first == 0:
            raise DataError(f"{data.source}: there is no row with a label to learn from")
        per_epoch = math.ceil(first / self.config.batch_size)
        total_steps = per_epoch * self.config.epochs
        if self.step == 0:
            self.network.set_output_bias(data.label_frequencies())
            if isinstance(data, Dataset) and has_label_prior(self.config):
                self.network.set_label_prior(data.x, data.y, same=data.users is not None)
        self._tell(lambda c: c.on_start(self, total_steps))
        samples, steps, active_sum = 0, 0, 0.0
        loss, interrupted = math.nan, False
        epoch_rows, epoch_loss = 0, 0.0
        self._begin = self._clocks()
        if self.profile:
            self.profile.begin(self.comm)
        try:
            with deferred_interrupt() as pressed:
                self._pressed = pressed
                while self.epoch < self.config.epochs:
                    epoch_start, epoch_rows, epoch_loss = time.perf_counter(), 0, 0.0
                    for x, y in self._read(data):
                        info = self.train_batch(x, y, total_steps)
                        self.position += info.rows
                        samples, steps, active_sum = samples + info.rows, steps + 1, active_sum + info.active
                        epoch_rows, epoch_loss = epoch_rows + info.rows, epoch_loss + info.loss * info.rows
                        self._tell(lambda c, i=info: c.on_step(self, i))  # type: ignore[misc]
                        if self.votes.any & Vote.STOP:
                            raise KeyboardInterrupt
                    seconds = time.perf_counter() - epoch_start
                    loss = epoch_loss / epoch_rows if epoch_rows else math.nan  # none left: interrupted at its end
                    self.epoch, self.position = self.epoch + 1, 0
                    ended = EpochInfo(self.epoch, loss, seconds, epoch_rows / max(seconds, 1e-9))
                    with self._aside():
                        self._tell(lambda c, e=ended: c.on_epoch(self, e))  # type: ignore[misc]
        except KeyboardInterrupt:
            interrupted = True
            loss = epoch_loss / epoch_rows if epoch_rows else loss
        if self.profile:
            self.profile.end()
        self._pressed = _never
        effort = self.effort()
        result = Result(
            effort.seconds, samples, steps, self.epoch, samples / max(effort.seconds, 1e-9),
            active_sum / max(steps, 1), loss, interrupted, load_balance(self.comm, effort, steps),
        )  # fmt: skip
        self._tell(lambda c: c.on_end(self, result))
        return result

    def train_batch(self, x: SparseRows, y: SparseRows, total_steps: int) -> StepInfo:
        """One step on the given rows. `total_steps` is what the learning-rate schedule runs over; 0 means that it is
        not known, and that the rate is always the full one."""
        if self._rebuilds.due(self.step):
            self.network.rebuild_tables()
        rate = learning_rate(self.config, self.step, total_steps)
        vote = reduce(or_, (c.vote(self) for c in self.callbacks), Vote.STOP if self._pressed() else Vote.NONE)
        result = self.network.train_step(x, self.network.loss.targets(y), self.step, rate, vote)
        self.votes, self.rate = result.votes, rate
        if self.comm.size == 1 and self._pressed():
            self.votes = Votes(self.votes.any | Vote.STOP, self.votes.all | Vote.STOP)
        self._own_active += result.own_active
        self.step += 1
        if self.profile:
            self.profile.steps += 1
        self.samples += len(x)
        return StepInfo(self.step, result.loss, result.active, rate, len(x))

    def _use_threads(self) -> None:
        use_threads(self.config.threads or local_ranks(self.comm).threads)

    def effort(self) -> RankStats:
        """What this rank did since `fit` was called, without what callbacks did at the ends of epochs."""
        seconds, waited, in_flight, sent, active = (self._clocks() - self._begin).tolist()
        return RankStats(seconds, waited, in_flight, int(sent), active)

    def _clocks(self) -> npt.NDArray[np.float64]:
        """Seconds now, and by now seconds of waiting, seconds of exchanges, bytes sent, active output neurons of this
        rank summed over steps."""
        comm = self.comm
        return np.array(
            [time.perf_counter(), comm.wait_seconds, comm.flight_seconds, comm.bytes_sent, self._own_active], np.float64
        )

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What is done inside is no training: the clocks from which it counts are put forward."""
        paused = self._clocks()
        if self.profile:
            self.profile.end()
        try:
            yield
        finally:
            if self.profile:
                self.profile.begin(self.comm)
            self._begin += self._clocks() - paused

    def progress(self) -> dict[str, int]:
        """Where training stands, for `load_progress`."""
        return {"step": self.step, "epoch": self.epoch, "position": self.position, "samples": self.samples}

    def load_progress(self, progress: dict[str, int]) -> None:
        """Takes up where `progress` says; the network's state is loaded apart."""
        if missing := [key for key in self.progress() if key not in progress]:
            raise ModelError(f"the progress of the training that is to go on lacks {missing[0]}")
        self.step, self.epoch = progress["step"], progress["epoch"]
        self.position, self.samples = progress["position"], progress["samples"]
        self._rebuilds.skip_to(self.step)

    def _check_data(self, data: Data) -> None:
        for what, have, limit in (
            ("features", data.features, self.network.features),
            ("labels", data.labels, self.network.labels),
        ):
            if have > limit:
                raise DataError(f"{data.source}: the data has {have} {what} but the network was made for {limit}")

    def _trainable(self, rows: Rows) -> npt.NDArray[np.signedinteger]:
        """Rows to train on: softmax can learn nothing from a row without labels."""
        return rows.with_labels() if self.network.loss.needs_labels else np.arange(len(rows))

    def _read(self, data: Data) -> Iterator[tuple[SparseRows, SparseRows]]:
        """Features and labels of what is left of the present epoch, batch by batch."""
        rows = data.epoch(self.epoch, self.config.seed)
        for batch in self._batches(self._trainable(rows)):
            yield self._take(rows, batch)

    def _take(self, rows: Rows, batch: npt.NDArray[np.signedinteger]) -> tuple[SparseRows, SparseRows]:
        if self.profile is None:
            return rows.batch(batch)
        with self.profile.phase(phases.READING, lambda: reading(x, y)):
            x, y = rows.batch(batch)
        return x, y

    def _batches(self, rows: npt.NDArray[np.signedinteger]) -> Iterator[npt.NDArray[np.signedinteger]]:
        """What is left of the present epoch, in an order that depends on seed and epoch alone."""
        order = np.random.default_rng([self.config.seed, self.epoch]).permutation(rows)
        for begin in range(self.position, len(order), self.config.batch_size):
            yield order[begin : begin + self.config.batch_size]

    def _tell(self, call: Callable[[Callback], Any]) -> None:
        for callback in self.callbacks:
            call(callback)


def _never() -> bool:
    return False


class RebuildSchedule:
    """When hash tables are renewed: after `every` steps, then at intervals that grow by the factor `growth`."""

    def __init__(self, every: int, growth: float):
        self._interval, self._growth, self._next = float(every), growth, float(every)

    def due(self, step: int) -> bool:
        """Whether tables are to be renewed before this step; each renewal is due once."""
        if step < self._next:
            return False
        self._interval *= self._growth
        self._next = step + self._interval
        return True

    def skip_to(self, step: int) -> None:
        """Forgets renewals before `step`, all of which were done."""
        while math.ceil(self._next) < step:
            self.due(math.ceil(self._next))


def learning_rate(config: Config, step: int, total_steps: int) -> float:
    """The learning rate of a step, counted from 0, out of `total_steps` (0: not known)."""
    if total_steps == 0:
        return config.learning_rate
    warm = config.warmup * total_steps
    if step < warm:
        return config.learning_rate * (step + 1) / (math.floor(warm) + 1)
    left = max(0.0, 1 - (step - warm) / max(total_steps - warm, 1))
    if config.schedule == "linear":
        return config.learning_rate * left
    if config.schedule == "cosine":
        return config.learning_rate * 0.5 * (1 - math.cos(math.pi * left))
    return config.learning_rate
