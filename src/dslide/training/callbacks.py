"""What training reports, and the base class of what wants to receive it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslide.comm.votes import Vote

if TYPE_CHECKING:
    from dslide.data import Data
    from dslide.training.autotune import Tuned
    from dslide.training.profiler import Profile
    from dslide.training.run import RunResult
    from dslide.training.trainer import Trainer


@dataclass(frozen=True)
class TrialInfo:
    """A finished training of `autotune`, with other options than the best so far, or with those."""

    number: int  #: counted from 1
    options: dict[str, Any]  #: that differ from those that were decided without trials
    rows: int  #: trained on
    score: float  #: on the held-out rows
    best: float | None  #: score of the best options so far after training on the same rows; None: these are they
    better: bool | None  #: enough to be the best options now or, on a sample of the rows, to be tried on all
    seconds: float


@dataclass(frozen=True)
class RunInfo:
    """A run that is about to start: its data is read and its memory planned, nothing is allocated yet."""

    folder: Path
    data: Data  #: to train on
    validation: Data | None  #: rows held out of it
    test: Data | None
    plan: list[str]  #: parameters and memory, as lines of text
    resumed_from: Path | None  #: a checkpoint
    threads: int  #: of this rank
    profile: Profile | None
    tuned: Tuned | None = None  #: what autotune gave


@dataclass(frozen=True)
class StepInfo:
    """A finished training step."""

    step: int  #: counted from 1
    loss: float  #: mean over the batch's rows
    active: float  #: active output neurons of a row
    learning_rate: float
    rows: int


@dataclass(frozen=True)
class EpochInfo:
    """A finished epoch."""

    epoch: int  #: counted from 1
    loss: float  #: mean over the epoch's rows
    seconds: float
    samples_per_second: float


@dataclass(frozen=True)
class TestInfo:
    """Metrics of the network on test data."""

    epoch: int  #: after which they were measured, counted from 1
    seconds: float  #: of training since it started or was resumed, without those of testing
    metrics: dict[str, float]  #: as evaluation.evaluate returns them


@dataclass(frozen=True)
class ValidationInfo:
    """Metrics of the network on rows held out of training."""

    epoch: int  #: after which they were measured, counted from 1; 0: before the first step
    seconds: float  #: of training since it started or was resumed
    took: float  #: seconds, of those
    metric: str  #: by which networks are compared
    metrics: dict[str, float]  #: as evaluation.evaluate returns them
    best: bool  #: nothing was better before
    ends: bool  #: training, since nothing better came


@dataclass(frozen=True)
class CalibrationInfo:
    """What calibrating the network on held-out rows gives, by cross-validation."""

    metric: str
    before: float
    after: float
    used: bool  #: the network is calibrated, since that is better
    linear_cost: float = 0.0  #: of errors in the linear classifiers that are mixed in; 0: none are
    neighbours: bool = False  #: whether votes of neighbours are mixed in


@dataclass(frozen=True)
class FitResult:
    """Totals of a call of `Trainer.fit`."""

    seconds: float  #: without those of callbacks at the ends of epochs, such as testing
    samples: int
    steps: int
    epochs: int  #: finished since training began, earlier calls included
    samples_per_second: float
    active_neurons_mean: float
    loss: float  #: mean over the rows of the last epoch that were trained in this call
    interrupted: bool
    load_balance: dict[str, Any]  #: over ranks


class Callback:
    """Receives what training reports. Every method may be left out."""

    def on_trial(self, info: TrialInfo) -> None:
        """A trial of `autotune` is done."""

    def on_run(self, info: RunInfo) -> None:
        """A whole run (`dslide.train`, `dslide.resume`) is about to start; a `Trainer` alone does not call this."""

    def vote(self, trainer: Trainer) -> Vote:
        """This rank's vote in the coming step; afterwards `trainer.votes` has the votes of all ranks."""
        return Vote.NONE

    def on_start(self, trainer: Trainer, total_steps: int) -> None:
        """Training starts or resumes; `total_steps` counts from the very first step to the last."""

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        """A step is done."""

    def on_epoch(self, trainer: Trainer, info: EpochInfo) -> None:
        """An epoch is done."""

    def on_test(self, trainer: Trainer, info: TestInfo) -> None:
        """The network was evaluated on test data."""

    def on_validation(self, trainer: Trainer, info: ValidationInfo) -> None:
        """The network was evaluated on rows held out of training."""

    def on_calibration(self, trainer: Trainer, info: CalibrationInfo) -> None:
        """The network was calibrated on rows held out of training, at the end."""

    def on_checkpoint(self, trainer: Trainer, step: int) -> None:
        """A checkpoint is complete; it has the network after `step` steps."""

    def on_end(self, trainer: Trainer, result: FitResult) -> None:
        """Training is over, or was interrupted."""

    def on_result(self, result: RunResult) -> None:
        """A whole run is over, or was interrupted; its folder has all that it will have."""

    def on_failure(self, error: BaseException) -> None:
        """A whole run ended with an error."""
