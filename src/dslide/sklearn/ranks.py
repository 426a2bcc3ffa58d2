"""The estimator's networks: new, or rebuilt from arrays, if memory suffices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt

from dslide.checkpoint.collective_load import restore_network
from dslide.comm import Communicator, job
from dslide.comm.topology import local_ranks
from dslide.config import Config
from dslide.data import Dataset
from dslide.model.defaults import ResolvedConfig
from dslide.model.network import Network
from dslide.model.sharding import Shard
from dslide.planner.memory import plan
from dslide.planner.shares import job_shares
from dslide.training.autotune import autotune, given_options
from dslide.training.callbacks import Callback
from dslide.training.logging import ProgressLine, TrialLine
from dslide.training.trainer import Trainer
from dslide.util.threads import use_threads


def new_trainer(config: Config, data: Dataset) -> Trainer:
    """A new network for this data, and its trainer."""
    comm = _ranks(config, data.features, data.labels, data, keeps_best=config.validation > 0)
    return Trainer(config, data.features, data.labels, comm=comm)


def tuned(config: Config, data: Dataset, callbacks: Sequence[Callback], verbose: bool) -> ResolvedConfig:
    """The options that trials of autotune find best for this data."""

    def check_memory(tried: Config) -> None:
        _ranks(tried, data.features, data.labels, data, keeps_best=True)

    comm = job(config.watchdog)
    lines = ([ProgressLine()], [TrialLine()]) if verbose else ([], [])
    return autotune(
        config, given_options(config), data, comm, check_memory, callbacks=[*lines[0], *callbacks],
        trial_callbacks=lines[1],
    ).config  # fmt: skip


def use_rank_threads(threads: int) -> None:
    """Sets the number of threads, 0 meaning as many as there are cores for this rank."""
    use_threads(Config(threads=threads).threads or local_ranks(job()).threads)


def _ranks(
    config: Config, features: int, labels: int, data: Dataset | None = None, keeps_best: bool = False
) -> Communicator:
    """The ranks that this process trains with, often only itself; MemoryNeeded if memory does not suffice."""
    comm = job(config.watchdog)
    comm.shares = job_shares(comm, config)
    here = local_ranks(comm)
    no_checkpoints = config.replace(checkpoint_seconds=0.0)  # which only runs in a folder have
    planned = partial(
        plan, no_checkpoints, features, labels, ranks=comm.size, threads=here.threads, share=Shard.of(comm).fraction
    )
    if data is not None:
        x, y = data.values_per_row
        about = {"features_per_row": x, "rows": len(data), "labels_per_row": y, "dense_features": data.dense_features}
        planned = partial(planned, data.data_bytes, **about)
    needed = planned(keeps_best=keeps_best)
    comm.together("memory", lambda: needed.check(here.ranks))
    return comm


def rebuild(
    config: Config, features: int, labels: int, state: Mapping[str, npt.NDArray[Any]], progress: dict[str, int] | None
) -> tuple[Network, Trainer | None]:
    """A network with this state and, if there is progress to continue from, its trainer."""
    if progress is None:
        return Network(config, features, labels, comm=job(), trainable=False, weights=state), None
    trainer = Trainer(config, features, labels, comm=_ranks(config, features, labels))
    restore_network(trainer.network, state)
    trainer.load_progress(progress)
    return trainer.network, trainer
