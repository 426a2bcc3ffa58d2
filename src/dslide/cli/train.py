"""dslide train: trains a network and writes a run folder. The work is done by dslide.train and dslide.resume."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslide.cli.evaluate import metrics_table
from dslide.cli.options import (
    add_config_options,
    add_k_option,
    add_option,
    add_reading_options,
    add_switch,
    describe,
    given,
    number,
    reading_options,
)
from dslide.cli.ranks import add_rank_options
from dslide.comm import launched_as
from dslide.config import Config
from dslide.errors import INTERRUPTED, ConfigError, Terminated
from dslide.training.callbacks import Callback, RunInfo
from dslide.util.terminal import command, printable
from dslide.util.units import clock, format_bytes, metric_name

if TYPE_CHECKING:
    from dslide.training.autotune import Tuned
    from dslide.training.run import RunResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="data to train on: a file or a converted folder")
    add_option(parser, "--out", "folder to create", "the next free runs/NAME-1, -2, ...", "RUN")
    resume = "resume this run; --epochs, --threads and options of several ranks may change"
    parser.add_argument("--resume", metavar="RUN", help=resume)
    existing = (
        "resume the run in --out if there is one, and wait for its last start to end: for jobs that are restarted"
    )
    add_switch(parser, "--resume-existing", existing)
    start = (
        "run or model to continue from, with DATA as further rows; its network grows by their new labels and features"
    )
    parser.add_argument("--from", metavar="RUN", dest="start_from", help=f"{start} (default: none)")
    replay = "with --from: earlier rows, of which some are trained on again, as many as new labels ask for"
    parser.add_argument("--replay", metavar="FILE", help=f"{replay} (default: none)")
    add_switch(parser, "--quiet", "print only errors and the summary")
    profile = "report the time of each phase, compared with what this machine can do, and write RUN/profile.json"
    add_switch(parser, "--profile", profile)
    events = "also write event files for TensorBoard to RUN/tensorboard; needs tensorboardX"
    add_switch(parser, "--tensorboard", events)
    add_switch(
        parser, "--mlflow", "also report the run to MLflow, configured by its environment variables; needs mlflow"
    )
    add_switch(parser, "--wandb", "also report the run to Weights & Biases, in the same way; needs wandb")
    add_k_option(parser)
    items = "with interactions: write the best items of each user to this file, as many as the largest --k"
    parser.add_argument("--recommend", metavar="FILE", help=f"{items} (default: none)")
    group = parser.add_argument_group("testing")
    add_option(group, "--test", "data to evaluate the trained network on", "none", "FILE")
    add_option(
        group, "--test-y", "file with the labels of --test, as --y has those of DATA", "Y.npz beside X.npz", "FILE"
    )
    add_option(group, "--test-embeddings", "file with dense features of the rows of --test", "none", "FILE")
    share = "share of DATA's rows, chosen at random, to evaluate on instead of training on them"
    add_option(group, "--hold-out", share, "none", "SHARE", number)
    how = "how interactions are held out: random, the newest by time, or the last one of each user"
    group.add_argument("--split", default="random", metavar="{random,time,last}", help=f"{how} (default: random)")
    add_option(group, "--test-every", "also evaluate after every N epochs; 0: only at the end", 0)
    add_option(group, "--test-rows", "number of random test rows that --test-every evaluates on; 0: all", 0)
    add_reading_options(parser, text=True, tokens=True)
    add_config_options(parser)
    add_rank_options(parser, elastic=True)


def run(arguments: argparse.Namespace) -> int:
    if arguments.resume is not None and arguments.out is not None:
        raise ConfigError("out: a resumed run continues in its own folder, so --out can't be given")
    if arguments.resume_existing and (arguments.out is None or arguments.resume is not None):
        raise ConfigError("resume-existing: resumes the run in --out if there is one; give --out, without --resume")
    if arguments.resume is not None and arguments.start_from is not None:
        raise ConfigError("from: a run that is resumed goes on from its own checkpoints; give one of the two")
    if arguments.recommend is not None and os.path.lexists(arguments.recommend):
        raise ConfigError(f"recommend: {arguments.recommend} exists already")
    options = given(arguments, Config)
    Config(**options)  # refused before anything heavy is imported

    from dslide import api

    console = _Console(arguments)
    names = ("test", "hold_out", "split", "test_every", "test_rows", "k", "profile", "tensorboard", "replay")
    shared: dict[str, Any] = options | reading_options(arguments) | {name: vars(arguments)[name] for name in names}
    shared |= {"progress": not arguments.quiet, "callbacks": [console, *_trackers(arguments)]}
    try:
        if arguments.resume is not None:
            result = api.resume(arguments.resume, arguments.data, **shared)
        else:
            shared["start_from"] = arguments.start_from
            again = arguments.elastic or arguments.resume_existing
            result = api.train(arguments.data, out=arguments.out, resume_existing=again, **shared)
    except Terminated as error:
        if console.folder is None:  # in trials, before the run
            raise
        how = ["--elastic"] * arguments.elastic + ["--resume-existing"] * arguments.resume_existing
        how = [*how, "--out"] if how else ["--resume"]
        again = f"{error}; to resume: {command('train', arguments.data, *how, console.folder)}"
        raise Terminated(again, error.blamed) from None
    if console.is_rank_0:
        console.print_result(result)
    if arguments.recommend is not None and not result.interrupted:
        _recommend(arguments, result)
    return INTERRUPTED if result.interrupted else 0


def _trackers(arguments: argparse.Namespace) -> list[Callback]:
    """Callbacks that report the run to services."""
    found: list[Callback] = []
    if arguments.mlflow:
        from dslide.tracking import MLflowLog

        found.append(MLflowLog())
    if arguments.wandb:
        from dslide.tracking import WandbLog

        found.append(WandbLog())
    return found


def _recommend(arguments: argparse.Namespace, result: RunResult) -> None:
    """Writes the best items of each user in the training data."""
    from dslide.cli.predict import text_line, write
    from dslide.training.inference import open_model
    from dslide.training.predictions import blocks_of

    model = open_model(result.folder, threads=arguments.threads if "threads" in arguments else 0)
    data = model.read(arguments.data)
    write(model, blocks_of(data), max(result.ks), arguments.recommend, text_line)
    if model.comm.rank == 0:
        print(f"wrote {arguments.recommend}: a line for each user, with {max(result.ks)} items")
    model.comm.barrier("the end")


class _Console(Callback):
    """Prints what is about to be trained, and the result."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.is_rank_0 = launched_as()[0] == 0  # which prints for all
        self.folder: Path | None = None
        self._users = False  # the data is interactions

    def on_run(self, info: RunInfo) -> None:
        self.folder, self._users = info.folder, info.data.users is not None
        if self._arguments.recommend is not None and not self._users:
            raise ConfigError("recommend: is only for interactions; dslide predict writes the labels of rows")
        if not self.is_rank_0 or self._arguments.quiet:
            return
        print(describe(self._arguments.data, info.data))
        if info.validation is not None:
            what = "a fifth of the items of {:,} users is" if self._users else "{:,} rows more are"
            print(what.format(len(info.validation)), "held out to tell which epoch was the best (--validation 0: none)")
        if info.tuned is not None:
            print(_tuned_in_words(info.tuned))
        if info.test is not None:
            print(describe(self._arguments.test or "held out of it", info.test))
        print("\n".join(info.plan))
        resumed = f", resumed from {info.resumed_from.name}" if info.resumed_from else ""
        print(f"run folder: {printable(str(info.folder))}{resumed}")
        if info.profile is not None:
            from dslide.training.profiler import describe_speeds

            threads = f"{info.threads} thread{'s' * (info.threads > 1)}"
            print(f"measured for the profile: {describe_speeds(info.profile.speeds)}, with {threads}")
        print(end="", flush=True)

    def print_result(self, result: RunResult) -> None:
        """The summary, and what to do next."""
        done = result.summary
        if done["best_epoch"] is not None:
            limit = done["config"]["epochs"]
            early = "" if done["epochs"] == limit else f"; training ended after epoch {done['epochs']} of {limit}"
            best = "the last" if done["best_epoch"] == done["epochs"] else "the best on the held-out rows"
            what = f"the network after epoch {done['best_epoch']} is kept, {best}"
            if done["best_epoch"] == 0:
                what = "the linear discriminant of all rows is kept: training made it no better on the held-out rows"
            print(f"{what}{early}")
        print(
            f"{done['epochs']} epochs, {clock(done['seconds'])}: {done['samples_per_second']:,.0f} samples/s, "
            f"loss {done['loss']:.4g}, {done['parameters']:,} parameters, "
            f"{format_bytes(done['peak_rss_bytes'])} of memory at most"
        )
        if done["ranks"] > 1:
            print(
                f"{done['ranks']} ranks: {format_bytes(round(done['bytes_sent_per_step']))} sent by each in a step, "
                f"{done['comm_seconds'] / max(done['seconds'], 1e-9):.0%} of the time spent waiting for others, "
                f"{done['overlap']:.0%} of the exchanges hidden; imbalance {done['imbalance']:.2f}"
            )
        if result.profile is not None:
            print(result.profile.table())
        if result.metrics:
            print(metrics_table(result.metrics, result.ks))
        print(f"saved in {printable(str(result.folder))}")
        data = self._arguments.data
        if result.interrupted:
            print(f"interrupted after {result.summary['steps']:,} steps; the network is saved, to resume:")
            print(f"  {command('train', data, '--resume', result.folder)}")
        else:
            tested = self._arguments.test is not None and not self._users
            rows = self._arguments.test if tested else data
            dense = self._arguments.test_embeddings if tested else self._arguments.embeddings
            more = [] if dense is None else ["--embeddings", dense]
            print(f"next: {command('predict', result.folder, rows, *more)}")


def _tuned_in_words(tuned: Tuned) -> str:
    """What autotune gave, and how to train the same network without it."""
    from dslide.training.logging import option_text

    trials = len(tuned.trials)
    why = {"time": "the time is over", "interrupted": "interrupted", "done": "nothing is left to try"}[tuned.ended]
    text = f"autotune: {trials} trial{'s' * (trials != 1)} in {clock(tuned.seconds)}, {why}"
    if all(trial.best is None for trial in tuned.trials):
        return f"{text}; nothing could be compared: the defaults are kept"
    if tuned.score is not None and tuned.default_score is not None:
        scores = f"{metric_name(tuned.metric)} of {tuned.held_out:,} held-out rows {tuned.score:.4f}"
        text += f"; {scores}, with the defaults {tuned.default_score:.4f}"
    if not tuned.options:
        return f"{text}; nothing was better by more than chance: the defaults are kept"
    options = " ".join(f"--{name.replace('_', '-')} {option_text(value)}" for name, value in tuned.options.items())
    return f"{text}\nthe same training without autotune: {options}"
