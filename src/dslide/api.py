"""Whole runs from Python: `train`, `resume` and `evaluate` do what the commands of the same names do.

They print nothing but warnings unless `progress` or callbacks ask for it. Inside mpiexec the network is split over the
ranks: every rank calls the same functions with the same arguments.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from dslide.checkpoint.collective_load import open_on_all_ranks
from dslide.comm import Communicator, job
from dslide.comm.topology import LocalRanks, local_ranks
from dslide.config import OPTIONS, Config, check_name
from dslide.data import Data, Dataset
from dslide.data.checks import check_training_data
from dslide.data.items import SplitBy
from dslide.errors import ConfigError
from dslide.model import growth
from dslide.model.defaults import ResolvedConfig, resolve
from dslide.model.sharding import Shard
from dslide.planner.memory import Plan, plan
from dslide.planner.shares import job_shares, shares_in_memory
from dslide.training import evaluation
from dslide.training.autotune import autotune, given_options
from dslide.training.callbacks import Callback, RunInfo
from dslide.training.early_stopping import keeps_best
from dslide.training.evaluation import EvaluationOptions, checked_ks, default_ks, exact_loss, recall_of_exact
from dslide.training.folders import check_folder, free_folder, lock_folder
from dslide.training.growth import check_base, check_start
from dslide.training.inference import Model, Rows, open_model
from dslide.training.logging import ProgressLine, TrialLine, warn
from dslide.training.predictions import Prediction, blocks_of, checked_threshold, predict_blocks
from dslide.training.profiler import Profile
from dslide.training.reading import (
    READING_OPTIONS,
    Reading,
    Source,
)
from dslide.training.run import Run, RunResult, load_run, resumed_config
from dslide.training.run_data import check_same, divided_data, grown_data, read_run_data
from dslide.training.run_lock import LONGEST_WAIT, NoLock, RunLock
from dslide.util.memory import available_bytes, rss_bytes
from dslide.util.threads import measure_speeds


def train(
    data: Source, config: Config | Mapping[str, Any] | None = None, *, out: str | Path | None = None,
    test: Source | None = None, hold_out: float | None = None, split: SplitBy = "random", test_every: int = 0,
    test_rows: int = 0, k: int | Sequence[int] | None = None, profile: bool = False, tensorboard: bool = False,
    progress: bool = False, callbacks: Sequence[Callback] = (), resume_existing: bool = False,
    start_from: str | Path | None = None, replay: Source | None = None, comm: Communicator | None = None,
    **options: Any,
) -> RunResult:  # fmt: skip
    """Trains a network and keeps a run folder: checkpoints, log.jsonl, summary.json. `dslide train` in Python.

    Parameters
    ----------
    data : path, Dataset or Tokens
        What to train on.
    config : Config or dict
        Options, such as the content of a recipe; `**options` override them.
    out : path
        Folder of the run, which must not exist yet; by default the next free runs/NAME-1, -2, ...
    test : path, Dataset or Tokens
        What to evaluate the trained network on.
    hold_out : float
        Share of the rows to evaluate on instead of training on them.
    split : {"random", "time", "last"}
        How interactions are held out: at random, the newest by time, or the last one of each user.
    test_every, test_rows : int
        Also evaluate after every `test_every` epochs (0: only at the end), on `test_rows` rows (0: all).
    k : int or list of int
        The k of metrics such as P@k.
    profile : bool
        Measure the time of each phase, and write profile.json.
    tensorboard : bool
        Also write event files for TensorBoard.
    progress : bool
        Print a line for each epoch to stderr, and a progress line if it is a terminal.
    callbacks : list of Callback
        They receive what training reports.
    resume_existing : bool
        If there is a run in `out`, resume it.
    start_from : path
        Folder of a run or a model to continue from, with `data` as further rows. They may have new labels and features,
        by which the network grows. Options are by default those of the model.
    replay : path or Dataset
        Earlier rows, those of the model or some of them: as many as the share of new labels asks for are trained on
        again, so that the network forgets less.
    comm : Communicator
        The ranks; by default those of mpiexec, or this process alone.
    **options
        Options by their names on the command line: those of `Config` (`epochs=3`) and those for reading files
        (`format="tsv"`, `label_column=2`, `min_df=3`, `window=5`).

    Returns
    -------
    RunResult
        Folder, summary, metrics and network. Ctrl-C finishes the present step and saves; the result is then marked as
        interrupted.

    Raises
    ------
    UserError
        Data, options or folders that can't be used.
    Diverged
        A number that is not finite came up.
    Terminated
        SIGTERM; everything is saved.
    """
    testing = EvaluationOptions(test, hold_out, split, test_every, test_rows, checked_ks(k))
    given = given_options(config) if isinstance(config, Config) else dict(config or {})
    return open_run(
        data, given | options, out=out, resume_existing=resume_existing, testing=testing, profile=profile,
        tensorboard=tensorboard, progress=progress, callbacks=callbacks, comm=comm, start_from=start_from,
        replay=replay,
    ).train()  # fmt: skip


def resume(
    run: str | Path, data: Source, *, test: Source | None = None, hold_out: float | None = None,
    split: SplitBy = "random", test_every: int = 0, test_rows: int = 0, k: int | Sequence[int] | None = None,
    profile: bool = False, tensorboard: bool = False, progress: bool = False, callbacks: Sequence[Callback] = (),
    replay: Source | None = None, comm: Communicator | None = None, **options: Any,
) -> RunResult:  # fmt: skip
    """Resumes a run from its newest usable checkpoint, on the same data. `dslide train --resume` in Python. (To
    continue with other data, use `train` with `start_from`.) The result, and the parameters that are not listed here,
    are those of `train`.

    Parameters
    ----------
    run : path
        Folder of the run.
    data : path, Dataset or Tokens
        The data that the run was trained on.
    **options
        These options of `Config` may change: epochs, patience, learning_rate, threads, wire, micro_batches, watchdog,
        checkpoint_seconds and checkpoints_kept. The number of ranks may change, too.

    Returns
    -------
    RunResult
        As of `train`.

    Raises
    ------
    UserError
        Other data, options that can't change, or a folder that can't be used.
    """
    testing = EvaluationOptions(test, hold_out, split, test_every, test_rows, checked_ks(k))
    return open_run(
        data, options, resume=run, testing=testing, profile=profile, tensorboard=tensorboard, progress=progress,
        callbacks=callbacks, comm=comm, replay=replay,
    ).train()  # fmt: skip


def evaluate(
    model: str | Path | Model, data: Source, *, k: int | Sequence[int] | None = None,
    history: str | Path | None = None, approximate: bool = False, threads: int = 0, comm: Communicator | None = None,
    **options: Any,
) -> dict[str, float]:  # fmt: skip
    """Measures a trained network on data with known labels. `dslide evaluate` in Python.

    Parameters
    ----------
    model : path or Model
        Folder of a run or of a model, or what `open_model` returned.
    data : path, Dataset or Tokens
        Rows with their labels.
    k : int or list of int
        The k of metrics such as P@k.
    history : path
        For interactions: the earlier ones of the users in `data`.
    approximate : bool
        Also measure prediction among labels that are looked up.
    threads : int
        0: one per core.
    comm : Communicator
        The ranks; by default those of mpiexec, or this process alone.
    **options
        Options of reading files.

    Returns
    -------
    dict
        p_at_k, r_at_k, ndcg_at_k and, where the training data's label counts are known, psp_at_k and coverage_at_k
        (the share of labels that are predicted for some row) for each k; rows and rows_without_labels; the loss over
        all labels; rows_per_second of exact prediction. With `approximate`, also the metrics and rows_per_second of
        approximate prediction, prefixed with `approximate_`; approximate_recall_of_exact_at_k, the share of the exact
        top k that it finds; and approximate_index_seconds, the time to build the index, unless it was saved with the
        model.

    Raises
    ------
    UserError
        A model or data that can't be used.
    """
    ks = checked_ks(k)
    opened = model if isinstance(model, Model) else open_model(model, threads=threads, comm=comm)
    test = opened.read(data, history=history, to_evaluate=True, **options)
    network, about = opened.network, (opened.saved.label_counts, opened.saved.rows, ks or default_ks(test))
    metrics, exact = evaluation.evaluate(network.predict_topk, network, test, *about)
    metrics["loss"] = exact_loss(network, test)
    if approximate:
        start = time.perf_counter()
        network.prediction_index()
        metrics["approximate_index_seconds"] = time.perf_counter() - start
        found, ids = evaluation.evaluate(network.predict_topk_approximate, network, test, *about)
        same = ("rows", "rows_without_labels")
        metrics |= {f"approximate_{name}": value for name, value in found.items() if name not in same}
        metrics |= {f"approximate_recall_of_exact_at_{n}": recall_of_exact(exact, ids, n) for n in about[-1]}
    return metrics


def predict(
    model: str | Path | Model, data: Source | Rows, *, k: int = 5, approximate: bool = False,
    probabilities: bool = False, threshold: float = 0.0, why: int = 0, threads: int = 0,
    comm: Communicator | None = None, **options: Any,
) -> Iterator[Prediction]:  # fmt: skip
    """The best k labels of each row, with their names. `dslide predict` in Python.

    Parameters
    ----------
    model : path or Model
        Folder of a run or of a model, or what `open_model` returned.
    data : path, Dataset, Tokens, list of texts or list of lists of items
        Texts are for models trained on text, items for models of interactions. Items that a user already has are not
        recommended.
    k : int
        Number of labels for each row.
    approximate : bool
        Score only labels that are looked up, which is faster.
    probabilities : bool
        Add probabilities, if the model's scores can be converted to them.
    threshold : float
        Leave out labels with a smaller probability.
    why : int
        Add this many features that influenced each label's score most.
    threads : int
        0: one per core.
    comm : Communicator
        The ranks; by default those of mpiexec, or this process alone.
    **options
        Options of reading files.

    Returns
    -------
    iterator of Prediction
        One for each row, in order.

    Raises
    ------
    UserError
        A model or data that can't be used.
    """
    if not isinstance(k, int) or k < 1:
        raise ConfigError(f"k: expected at least 1, not {k!r}")
    opened = model if isinstance(model, Model) else open_model(model, threads=threads, comm=comm)
    blocks = blocks_of(opened.read(data, **options))
    return predict_blocks(opened, blocks, k, approximate, probabilities, checked_threshold(threshold), why)


# ---- internal -------------------------------------------------------------------------------------------------------


def open_run(
    data: Source, options: Mapping[str, Any], *, out: str | Path | None = None,
    resume: str | Path | None = None, resume_existing: bool = False, testing: EvaluationOptions,
    profile: bool = False, tensorboard: bool = False, progress: bool = False, callbacks: Sequence[Callback] = (),
    comm: Communicator | None = None, estimator: Mapping[str, Any] | None = None, validation: Dataset | None = None,
    start_from: str | Path | None = None, replay: Source | None = None,
) -> Run:  # fmt: skip
    """A run that is ready to train: data read, memory checked, network made, state loaded if it is resumed. `options`
    are those that are given, of Config and of reading files; `estimator` is what saved models keep for SlideClassifier;
    `validation` has rows to use in place of those that would be held out. Collective: every rank goes through the same
    exchanges."""
    for name in options:
        check_name(name, (*OPTIONS, *READING_OPTIONS))
    reading, given = Reading.of(options), {name: options[name] for name in OPTIONS if name in options}
    config = Config(**given)
    check_start(start_from, replay, resume, testing, config)
    if tensorboard:
        from dslide.training.tensorboard import check_tensorboard

        check_tensorboard()
    comm = comm or job(config.watchdog)
    comm.shares = job_shares(comm, config, may_differ=resume_existing)
    folder = _folder(data, out, resume, comm)
    if not resume_existing:
        comm.together("checking the folder", lambda: check_folder(folder, resume is not None))
    with ExitStack() as held:  # the run's lock, given back if the run can't begin
        saved = last = None
        wait = LONGEST_WAIT if resume_existing else 0.0  # for the ranks of an earlier start to end
        lock = _lock(held, folder, comm, wait) if comm.gather_objects("folder", folder.is_dir())[0] else None
        if resume is not None or resume_existing:
            saved, last = load_run(folder, comm, must=resume is not None)
        if saved is not None:
            config = comm.together("options", lambda: resumed_config(given, folder, saved, may_be_done=resume_existing))
        base = None
        if start_from is not None and saved is None:
            base = open_on_all_ranks(start_from, comm, optimizer=True, verify=True)
            check = partial(check_base, base, start_from, replay is not None, testing)
            comm.together("model to go on from", check)
        comm.limit = config.watchdog
        testing = comm.together("test options", lambda: testing.like(saved))
        growing = None
        if base is not None or (saved is not None and "earlier" in saved.progress):
            begin = partial(grown_data, data, replay, reading, testing, given, base, saved, start_from)
            config, growing, test = comm.together("reading the data", begin)
            rows: Data = growing.train
        else:
            rows, test = comm.together(
                "reading the data", partial(read_run_data, data, reading, testing, config, saved)
            )
        if comm.rank == 0 and saved is None and base is None and isinstance(rows, Dataset):
            for suspicion in check_training_data(rows):
                warn(suspicion)
        here = local_ranks(comm)
        if config.shares == (-1,) and saved is None and base is None:  # else the arrays are open already
            comm.shares = _fitting_shares(config, rows, comm, here)
        line = [ProgressLine()] if progress and comm.rank == 0 else []
        tuned = None
        if config.autotune and saved is None and base is None:
            tuned = autotune(
                config, given, rows, comm, partial(_check_trial, rows, comm, here), ks=testing.ks,
                callbacks=[*line, *callbacks], trial_callbacks=[TrialLine() for _ in line],
            )  # fmt: skip
            config, folder = tuned.config, _folder(data, out, resume, comm)
            if not resume_existing:  # another run may have begun meanwhile
                comm.together("checking the folder", lambda: check_folder(folder, False))
        if growing is not None:
            train_data, held_out = rows, growing.validation
            comm.together("the data", partial(check_same, data, rows, saved, folder))
        else:
            divide = partial(
                divided_data, data, rows, test, reading, testing, config, saved, folder, validation, comm.size
            )
            del rows
            config, train_data, held_out, test = comm.together("dividing the data", divide)
            del divide

        planned = _plan(config, train_data, comm, here)
        if growing is not None and saved is None and isinstance(growing.new, Dataset) and growing.new.users is None:
            counted = growth.count_bytes(len(growing.new), *growing.new.values_per_row)
            planned = dataclasses.replace(planned, parts=planned.parts | {"counting new rows": counted})
        threads = config.threads or here.threads
        measured = None
        if profile:
            comm.barrier("measuring the machine")  # all ranks measure at the same time, as they will train
            measured = Profile(measure_speeds(threads))
        lines = planned.lines()
        if growing is not None:
            lines += [said] if (said := growing.in_words()) else []
            if growing.forgets and saved is None and comm.rank == 0:
                warn(
                    "many labels of the new rows are new, and earlier ones will be forgotten: give replay earlier rows"
                )
        if config.shares:
            lines.append(f"shares of the ranks: {', '.join(map(str, Shard.of(comm).every))}")
        for callback in callbacks:
            callback.on_run(RunInfo(folder, train_data, held_out, test, lines, last, threads, measured, tuned))
        comm.together("memory", lambda: planned.check(here.ranks))
        run = Run(
            comm, folder, config, train_data, validation=held_out, test=test, testing=testing,
            planned_bytes=planned.bytes_total, saved=saved, last=last, profile=measured, tensorboard=tensorboard,
            callbacks=[*line, *callbacks], estimator=estimator, tuned=tuned, base=base, growing=growing,
            lock=lambda: lock or _lock(held, folder, comm, wait, new=not resume_existing),
        )  # fmt: skip
        held.pop_all()  # the run gives it back
        return run


def _folder(data: Source, out: str | Path | None, resume: str | Path | None, comm: Communicator) -> Path:
    """The run's folder; where it is left open, rank 0 chooses for all."""
    if (given := out if resume is None else resume) is not None:
        return Path(given)
    name = data if isinstance(data, (str, Path)) else data.source
    return Path(comm.gather_objects("folder", str(free_folder(str(name))))[0])


def _lock(held: ExitStack, folder: Path, comm: Communicator, wait: float, new: bool | None = None) -> RunLock | NoLock:
    """Takes the lock of a run, which rank 0 has for all; `new` as in `lock_folder`."""

    def take() -> RunLock | NoLock:
        lock = lock_folder(folder, new, wait) if comm.rank == 0 else NoLock()
        held.callback(lock.release)
        return lock

    return comm.together("lock of the run", take)


def _plan(
    config: Config, data: Data, comm: Communicator, here: LocalRanks, trial: bool = False,
    share: Fraction | None = None,
) -> Plan:  # fmt: skip
    """The memory of a training; in a trial there are copies of the data and, as a rule, of the best network."""
    features_per_row, labels_per_row = data.values_per_row
    planned = partial(
        plan, config, data.features, data.labels, data.data_bytes * (1 + trial), comm.size, here.threads,
        isinstance(data, Dataset), features_per_row, rows=len(data), labels_per_row=labels_per_row,
        dense_features=data.dense_features, share=share or Shard.of(comm).fraction,
    )  # fmt: skip
    return planned(keeps_best=trial and keeps_best(planned().parameters, len(data)))


def _fitting_shares(config: Config, data: Data, comm: Communicator, here: LocalRanks) -> tuple[int, ...]:
    """The measured shares of a job, as far as memory goes."""

    def bytes_of(part: Fraction) -> int:
        return _plan(resolve(config, data.labels, data, comm.size), data, comm, here, share=part).bytes_total

    return shares_in_memory(comm, comm.shares, bytes_of, available_bytes() // here.ranks + rss_bytes())


def _check_trial(data: Data, comm: Communicator, here: LocalRanks, config: ResolvedConfig) -> None:
    """MemoryNeeded, on all ranks, if one has too little memory for a trial."""
    planned = _plan(config, data, comm, here, trial=True)
    comm.together("memory of a trial", lambda: planned.check(here.ranks))
