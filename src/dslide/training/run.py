"""A whole training run and its folder: checkpoints/ (the network), log.jsonl (what happened), summary.json (the
result), and profile.json and tensorboard/ if requested. With several ranks each writes a log of its own, log-1.jsonl
and so on; the other files are those of rank 0."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslide import _core
from dslide.checkpoint.collective_load import open_newest, open_on_all_ranks, restore_network
from dslide.checkpoint.manager import CheckpointManager
from dslide.checkpoint.run_folder import CHECKPOINTS
from dslide.checkpoint.saved_model import SavedModel
from dslide.comm import Communicator
from dslide.comm.votes import Vote
from dslide.config import Config
from dslide.data import Data, Dataset, Tokens
from dslide.errors import ConfigError, Diverged, Terminated
from dslide.model.defaults import resolve, resolve_like
from dslide.model.network import Network
from dslide.training.callbacks import Callback, FitResult, StepInfo, TestInfo, TrialInfo
from dslide.training.early_stopping import Best, EarlyStopping, keeps_best
from dslide.training.evaluation import EvaluationOptions, PeriodicTest, default_ks, evaluate, exact_loss
from dslide.training.growth import GrowingData, go_on, grow
from dslide.training.logging import JsonLog, RecordLog, finite, warn
from dslide.training.profiler import Profile
from dslide.training.run_lock import NoLock, RunLock
from dslide.training.trainer import Trainer
from dslide.util.atomic import AtomicFile
from dslide.util.memory import peak_rss_bytes
from dslide.util.signals import terminated

if TYPE_CHECKING:
    from dslide.training.autotune import Tuned

METRICS = ("p", "r", "ndcg", "psp", "coverage")  # of the summary, each at every k
CHANGEABLE = (  # options that may change when a training is resumed
    "epochs", "patience", "learning_rate", "threads", "wire", "shares", "micro_batches", "watchdog",
    "checkpoint_seconds", "checkpoints_kept",
)  # fmt: skip


@dataclass(frozen=True)
class RunResult:
    """The outcome of `dslide.train` or `dslide.resume`, on every rank."""

    folder: Path
    summary: dict[str, Any]  #: the content of RUN/summary.json
    metrics: dict[str, float]  #: on the test data, as `dslide.evaluate` returns them; empty if nothing was tested
    ks: tuple[int, ...]  #: that metrics are reported at
    network: Network  #: as it is at the end
    profile: Profile | None  #: of this rank, if requested

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run early; everything is saved, and `dslide.resume` continues it."""
        return bool(self.summary["interrupted"])


class Checkpointing(Callback):
    """Writes checkpoints of a trainer's run to its folder while it trains, as its options say; `manager` saves at other
    times. `model`, `warn`, `last`, `kept_step` and `check` are as in `CheckpointManager`."""

    def __init__(
        self, trainer: Trainer, run: Path, model: Callable[[], SavedModel], warn: Callable[[str], None],
        last: Path | None = None, kept_step: int = 0, check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        config = trainer.config
        self.manager = CheckpointManager(
            run, trainer.comm, trainer, model, seconds=config.checkpoint_seconds, kept=config.checkpoints_kept,
            warn=warn, on_complete=partial(trainer.notify, "on_checkpoint"), last=last, kept_step=kept_step,
            check=check,
        )  # fmt: skip

    def vote(self, trainer: Trainer) -> Vote:
        return self.manager.vote()

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        self.manager.after_step(trainer.votes)


class CheckpointKeeper:
    """Keeps the best network of a run as a checkpoint."""

    def __init__(self, checkpoints: CheckpointManager, trainer: Trainer, step: int) -> None:
        self._checkpoints, self._trainer, self._step = checkpoints, trainer, step

    def keep(self) -> None:
        self._checkpoints.keep()
        self._step = self._trainer.step

    def restore(self) -> None:
        self._checkpoints.restore(self._step)


class Run:
    """Trains on the data, from the start or from a saved state, and keeps the run's folder."""

    def __init__(
        self, comm: Communicator, folder: Path, config: Config, data: Data, *, validation: Dataset | None = None,
        test: Data | None = None, testing: EvaluationOptions, planned_bytes: int = 0, saved: SavedModel | None = None,
        last: Path | None = None, profile: Profile | None = None, tensorboard: bool = False,
        callbacks: Sequence[Callback] = (), estimator: Mapping[str, Any] | None = None, tuned: Tuned | None = None,
        base: SavedModel | None = None, growing: GrowingData | None = None,
        lock: Callable[[], RunLock | NoLock] = NoLock,
    ) -> None:  # fmt: skip
        """`growing` is what a model is trained on further: `base`, or that which was saved in the midst of it. `lock`
        takes the run's lock, which is released when training has ended."""
        self.folder, self.comm, self.data, self.test = folder, comm, data, test
        self.tuned = saved.progress.get("autotune") if saved is not None else tuned and tuned.to_dict()
        self.hold_out, self.split = testing.hold_out, testing.split
        self.planned_bytes, self.estimator = planned_bytes, estimator
        self.ks = testing.ks or default_ks(data)
        self.label_counts, self.rows = data.label_counts, len(data)
        if growing is not None:
            self.label_counts, self.rows = growing.label_counts, growing.rows
        self.earlier = None if growing is None else growing.earlier
        before = saved if saved is not None else base
        self.linear_cost = 0.0 if before is None else before.progress.get("linear_cost", 0.0)
        self.trainer = Trainer(config, data.features, data.labels, comm=comm, profile=profile)
        self._lock = lock()  # which makes the folder of a new run, where rank 0 is
        folder.mkdir(parents=True, exist_ok=True)
        if saved is not None:
            restore_network(self.trainer.network, saved.state)
            self.trainer.load_progress(saved.progress)
            if growing is not None:
                go_on(self.trainer, growing, self.linear_cost)
        elif base is not None and growing is not None:
            grow(self.trainer, base, growing, self.linear_cost)
        self._logs = self._make_logs(tensorboard, tuned.trials if tuned is not None else ())
        best = Best() if saved is None else Best.of(saved.progress, folder)
        if saved is not None and config.epochs > saved.config.epochs:
            best = dataclasses.replace(best, ended=False)
        checkpointing = Checkpointing(self.trainer, folder, self.model, warn, last, best.step, self._lock.check)
        self.checkpoints = checkpointing.manager
        self.early_stopping: EarlyStopping | None = None
        if validation is not None:
            keeps = keeps_best(self.trainer.network.parameters, len(data))
            keeper = CheckpointKeeper(self.checkpoints, self.trainer, best.step) if keeps else None
            about = (self.label_counts, self.rows, self.ks)
            self.early_stopping = EarlyStopping(validation, *about, keeper, config.patience, warn, best)
        self.trainer.callbacks += [*callbacks, *self._logs, checkpointing]
        if test is not None and testing.every:
            self.trainer.callbacks.append(PeriodicTest(self.measure, test, testing.every, testing.rows, config.seed))

    def _make_logs(self, tensorboard: bool, trials: Sequence[TrialInfo]) -> list[RecordLog]:
        name = "log.jsonl" if self.comm.rank == 0 else f"log-{self.comm.rank}.jsonl"
        about = {"data": self.data.source, "rows": len(self.data), "planned_bytes": self.planned_bytes}
        make = partial(JsonLog, self.folder / name, about=about, trials=trials)
        logs: list[RecordLog] = [self.comm.together("log", make)]
        if tensorboard and self.comm.rank == 0:
            from dslide.training.tensorboard import TensorBoardLog  # tensorboardX takes time and memory

            logs.append(TensorBoardLog(self.folder / "tensorboard"))
        return logs

    def train(self) -> RunResult:
        """Trains until the end or Ctrl-C, saves the network, evaluates it on the test data and writes the summary.
        Terminated, on all ranks, if one of them received SIGTERM."""
        try:
            result = self._train()
            for callback in self.trainer.callbacks:
                callback.on_result(result)
            return result
        except BaseException as error:
            for callback in self.trainer.callbacks:
                callback.on_failure(error)
            raise
        finally:
            self._lock.release()

    def _train(self) -> RunResult:
        result = self._fit()
        metrics: dict[str, float] = {}
        if self.test is not None and not result.interrupted:
            metrics = self.measure(self.test)
            for log in self._logs:
                log.on_test(self.trainer, TestInfo(self.trainer.epoch, result.seconds, metrics))
        summary = self._summary(result, metrics)
        if self.comm.rank == 0:
            _write_json(self.folder / "summary.json", summary)
            if self.trainer.profile is not None:
                _write_json(self.folder / "profile.json", self._profile_figures(self.trainer.profile))
        ended = terminated_ranks(self.comm)  # also the barrier at the end
        if result.interrupted and ended:
            who = f"{', '.join(ended.values())} received SIGTERM after {self.trainer.step:,} steps"
            raise Terminated(f"{who}; the network is saved in {self.folder}", list(ended))
        return RunResult(self.folder, summary, metrics, self.ks, self.trainer.network, self.trainer.profile)

    def _fit(self) -> FitResult:
        try:
            result = self.trainer.fit(self.data, self.early_stopping)
            self.checkpoints.save()
            self.checkpoints.close()
            return result
        except Diverged as error:
            raise Diverged(f"{error}; {self.checkpoints.last_in_words()}") from None

    def model(self) -> SavedModel:
        """The run as it is now."""
        data, network = self.data, self.trainer.network
        if self.early_stopping is not None and self.early_stopping.linear_cost is not None:
            self.linear_cost = self.early_stopping.linear_cost
        return SavedModel(
            config=network.config, features=network.features, dense_features=data.dense_features,
            labels=network.labels, state=network.state(),
            label_names=None if data.label_names is None else list(data.label_names),
            feature_names=None if data.feature_names is None else list(data.feature_names),
            vectorizer=None if data.vectorizer is None else data.vectorizer.to_dict(),
            progress={
                **self.trainer.progress(), "data": data.checksum, "hold_out": self.hold_out, "split": self.split,
                "linear_cost": self.linear_cost,
                "best": None if self.early_stopping is None else self.early_stopping.best.saved(),
                **({} if self.tuned is None else {"autotune": self.tuned}),
                **({} if self.earlier is None else {"earlier": self.earlier.saved()}),
            },
            label_counts=self.label_counts, rows=self.rows, base=data.base, interactions=data.users is not None,
            tokens=dataclasses.asdict(data.options) if isinstance(data, Tokens) else None,
            layout=data.layout.to_dict() if isinstance(data, Dataset) else None,
            estimator=None if self.estimator is None else dict(self.estimator),
        )  # fmt: skip

    def measure(self, test: Data) -> dict[str, float]:
        """Metrics of the network as it is now, and its loss over all labels. Ranks measure together."""
        network = self.trainer.network
        found, _ = evaluate(network.predict_topk, network, test, self.label_counts, self.rows, self.ks)
        return found | {"loss": exact_loss(network, test)}

    def _summary(self, result: FitResult, metrics: Mapping[str, float]) -> dict[str, Any]:
        """What summary.json says, on every rank as rank 0 knows it."""
        network = self.trainer.network
        own = {"host": socket.gethostname(), "threads": _core.threads(), "peak_rss_bytes": peak_rss_bytes()}
        ranks = self.comm.gather_objects("memory used", own)
        per_rank = [a | b for a, b in zip(result.load_balance["per_rank"], ranks, strict=True)]
        summary: dict[str, Any] = {
            "samples_per_second": result.samples_per_second, "seconds": result.seconds, "samples": result.samples,
            "epochs": self.trainer.epoch, "steps": self.trainer.step, "interrupted": result.interrupted,
            "best_epoch": self.early_stopping and self.early_stopping.kept_epoch,
            "loss": result.loss, "active_neurons_mean": result.active_neurons_mean,
            "parameters": network.parameters, "features": network.features, "labels": network.labels,
            "rows": len(self.data), "planned_bytes": self.planned_bytes,
            **{name: metrics.get(name) for name in (f"{metric}_at_{k}" for metric in METRICS for k in self.ks)},
            "test_rows": metrics.get("rows"), "test_loss": metrics.get("loss"),
            "peak_rss_bytes": max(rank["peak_rss_bytes"] for rank in ranks),
            "ranks": self.comm.size, "shares": network.shard.every, **result.load_balance, "per_rank": per_rank,
            "threads": _core.threads(), "isa": _core.isa(), "seed": network.config.seed, "version": version("dslide"),
            "config": network.config.to_dict(), "autotune": self.tuned,
        }  # fmt: skip
        of_rank_0: dict[str, Any] = self.comm.gather_objects("summary", summary if self.comm.rank == 0 else None)[0]
        return of_rank_0

    def _profile_figures(self, profile: Profile) -> dict[str, Any]:
        return {
            "rank": self.comm.rank, "ranks": self.comm.size, "threads": _core.threads(), "isa": _core.isa(),
            "steps": profile.steps, "seconds": profile.seconds, "measured_peak": vars(profile.speeds),
            "phases": profile.figures(),
        }  # fmt: skip


def load_run(folder: Path, comm: Communicator, must: bool) -> tuple[SavedModel | None, Path | None]:
    """The newest usable checkpoint of a run, on all ranks, and its folder. Without any, ModelError if there `must` be
    one, else None."""
    found = open_newest(folder / CHECKPOINTS, comm, optimizer=True, verify=True)
    if found is None:
        return (open_on_all_ranks(folder, comm, optimizer=True, verify=True) if must else None), None
    return found[1], found[0]


def resumed_config(given: Mapping[str, Any], folder: Path, saved: SavedModel, may_be_done: bool = False) -> Config:
    """The options of the run, with those that may change as they are given now. ConfigError if others differ, or if
    no epoch is left."""
    now = resolve_like(Config(**given), resolve(saved.config, saved.labels))
    if name := first_change(now, saved.config, [name for name in given if name not in CHANGEABLE]):
        raise ConfigError(
            f"{name}: the run was begun with {getattr(saved.config, name)!r}, and on resuming only "
            f"{', '.join(CHANGEABLE[:-1])} and {CHANGEABLE[-1]} may change; to begin anew, give another folder as out"
        )
    config = saved.config.replace(**{"shares": ()} | {name: given[name] for name in CHANGEABLE if name in given})
    done = saved.progress.get("epoch", 0)
    if may_be_done or config.epochs > max(done, saved.config.epochs):
        return config
    if done >= config.epochs:
        other = f"to go on with other data: --from {folder} (in Python, start_from)"
        raise ConfigError(f"{folder}: all {config.epochs} epochs are done; give more epochs to resume; {other}")
    if Best.of(saved.progress, folder).ended:
        early = f"training ended early, after {done} of {saved.config.epochs} epochs"
        raise ConfigError(f"{folder}: {early}; give more epochs than {saved.config.epochs} to resume")
    return config


def first_change(now: Config, before: Config, names: Iterable[str]) -> str | None:
    """The first of these options that differs."""
    return next((name for name in names if getattr(now, name) != getattr(before, name)), None)


def terminated_ranks(comm: Communicator) -> dict[int, str]:
    """Ranks that received SIGTERM, and their names. All ranks call it together."""
    name = f"rank {comm.rank} ({socket.gethostname()})" if comm.size > 1 else "this process"
    names = comm.gather_objects("the end", name if terminated() else None)
    return {rank: name for rank, name in enumerate(names) if name is not None}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with AtomicFile(path, encoding="utf-8") as file:
        file.write(json.dumps(finite(dict(content)), indent=1) + "\n")
