"""dslide train: reads data, says what the run will need, trains, measures, and writes a run folder."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslide.cli.options import (
    add_config_options,
    add_k_option,
    add_reading_options,
    add_text_options,
    describe,
    given,
    parse_ks,
    reading_options,
    text_options,
)
from dslide.cli.ranks import add_elastic_options, add_rank_options
from dslide.cli.testing_options import add_testing_options, check_testing_options, held_out_share
from dslide.cli.tokens import add_token_options, is_stream, load_stream, token_options
from dslide.comm import job
from dslide.config import Config
from dslide.errors import INTERRUPTED, ConfigError, DataError, ModelError, Terminated
from dslide.util.signals import terminated

if TYPE_CHECKING:
    from dslide.checkpoint.saved_model import SavedModel
    from dslide.comm import Communicator
    from dslide.data import Data
    from dslide.training.profiler import Profile


MAY_CHANGE = (  # when a run is resumed
    "epochs", "learning_rate", "threads", "wire", "micro_batches", "watchdog", "checkpoint_seconds", "checkpoints_kept",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="data to train on: a file or a converted folder")
    parser.add_argument("--out", metavar="RUN", help="folder to make (default: the next free runs/NAME-1, -2, ...)")
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with this run; --epochs, --threads and options of several ranks may change",
    )
    parser.add_argument("--quiet", action="store_true", help="print only errors and the summary (default: no)")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="tell where the time goes, against what this machine can do, and write RUN/profile.json (default: no)",
    )
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        help="also write event files for TensorBoard to RUN/tensorboard (default: no)",
    )
    add_k_option(parser)
    add_testing_options(parser)
    add_reading_options(parser)
    add_text_options(parser)
    add_token_options(parser)
    add_config_options(parser)
    add_rank_options(parser)
    add_elastic_options(parser)


def run(arguments: argparse.Namespace) -> int:
    check_testing_options(arguments)
    options = given(arguments, Config)
    ks = parse_ks(arguments.k)
    comm = job(Config(**options).watchdog)
    folder = _folder(arguments, comm)
    comm.together("checking the folder", lambda: _check_folder(arguments, folder))
    config, saved, last = Config(**options), None, None
    if arguments.resume is not None or arguments.elastic:
        saved, last = _load_run(folder, comm, arguments.resume is not None)
    if saved is not None:
        config = comm.together("options", lambda: _resumed_config(options, folder, saved, arguments.elastic))
    comm.limit = config.watchdog
    hold_out = comm.together("test options", lambda: held_out_share(arguments, saved))
    data, test = comm.together("reading the data", lambda: _read(arguments, saved, hold_out, folder, config.seed))

    from dslide.comm.topology import local_ranks
    from dslide.data import Dataset
    from dslide.model.defaults import resolve
    from dslide.planner.memory import plan

    if saved is None:
        config = resolve(config, data.labels, data)

    here = local_ranks(comm)
    prior = isinstance(data, Dataset)
    sizes, (per_row, _) = (data.features, data.labels, data.data_bytes), data.values_per_row
    planned = plan(config, *sizes, comm.size, here.threads, prior, per_row)
    if not arguments.quiet and comm.rank == 0:
        print(describe(arguments.data, data))
        if test is not None:
            print(describe(arguments.test or "held out of it", test))
        print("\n".join(planned.lines()))
        print(f"run folder: {folder}{f', going on from {last.name}' if last else ''}", flush=True)
    comm.together("memory", lambda: planned.check(here.ranks))

    from dslide.training.evaluation import Testing
    from dslide.training.run import Run

    profile = _profile(config.threads or here.threads, comm, arguments.quiet) if arguments.profile else None
    training = Run(
        comm, folder, config, data, saved, arguments.quiet, planned.bytes_total, profile, ks, hold_out, last,
        arguments.tensorboard,
    )  # fmt: skip
    if test is not None and arguments.test_every:
        testing = Testing(training.measure, test, arguments.test_every, arguments.test_rows, config.seed)
        training.trainer.callbacks.append(testing)
    result = training.train()
    training.summarize(result, None if result.interrupted else test)
    told = _told_to_end(comm)  # also the barrier at the end
    if result.interrupted and told:
        again = f"dslide train {arguments.data} {'--elastic --out' if arguments.elastic else '--resume'} {folder}"
        who = f"{', '.join(told.values())} was told to end (SIGTERM) after {training.trainer.step:,} steps"
        raise Terminated(f"{who}; the network is saved, to go on: {again}", list(told))
    if comm.rank > 0:
        return INTERRUPTED if result.interrupted else 0
    if result.interrupted:
        print(f"interrupted after {training.trainer.step:,} steps; the network is saved, to go on with it:")
        print(f"  dslide train {arguments.data} --resume {folder}")
        return INTERRUPTED
    to_predict = arguments.data if data.users is not None else arguments.test or arguments.data
    print(f"next: dslide predict {folder} {to_predict}")
    return 0


def _told_to_end(comm: Communicator) -> dict[int, str]:
    """Ranks that got SIGTERM, and their names."""
    name = f"rank {comm.rank} ({socket.gethostname()})" if comm.size > 1 else "this process"
    names = comm.gather_objects("the end", name if terminated() else None)
    return {rank: name for rank, name in enumerate(names) if name is not None}


def _profile(threads: int, comm: Communicator, quiet: bool) -> Profile:
    """An empty profile, with what this rank's threads can do at best. All ranks measure at the same time, as they will
    train."""
    from dslide.training.profiler import Profile, describe_speeds
    from dslide.util.cpu import measure_speeds

    comm.barrier("measuring the machine")
    profile = Profile(measure_speeds(threads))
    if not quiet and comm.rank == 0:
        in_words = f"{threads} thread{'s' * (threads > 1)}"
        print(f"measured for the profile: {describe_speeds(profile.speeds)}, with {in_words}", flush=True)
    return profile


def _folder(arguments: argparse.Namespace, comm: Communicator) -> Path:
    """The run's folder; where it is left open, the first rank chooses for all."""
    if arguments.resume is not None:
        return Path(arguments.resume)
    if arguments.out is not None:
        return Path(arguments.out)
    return Path(comm.gather_objects("folder", str(free_folder(arguments.data)))[0])


def _check_folder(arguments: argparse.Namespace, folder: Path) -> None:
    """A new run's folder must not exist, that of a run to resume must; an elastic run begins or goes on."""
    if arguments.resume is None and not arguments.elastic and folder.exists():
        raise ConfigError(f"{folder}: exists already; give another --out, or --resume {folder} to go on with it")
    if arguments.resume is not None and arguments.out is not None:
        raise ConfigError("--out: a resumed run goes on in its own folder, so --out can't be given")
    if arguments.resume is not None and not folder.is_dir():
        raise ModelError(f"{folder}: there is no such run to resume")


def _load_run(folder: Path, comm: Communicator, must: bool) -> tuple[SavedModel | None, Path | None]:
    """The newest checkpoint that can be used, on all ranks, and its folder; None if the run has none and need not have
    one. A folder that is a model itself, such as a copied checkpoint, can be resumed too."""
    from dslide.checkpoint.collective_load import open_newest, open_on_all_ranks
    from dslide.checkpoint.run_folder import CHECKPOINTS

    found = open_newest(folder / CHECKPOINTS, comm, optimizer=True, verify=True)
    if found is None:
        return (open_on_all_ranks(folder, comm, optimizer=True, verify=True) if must else None), None
    return found[1], found[0]


def _resumed_config(options: dict[str, Any], folder: Path, saved: SavedModel, may_be_done: bool) -> Config:
    """The options of the run, with those that may change as they are given now."""
    from dslide.model.defaults import as_before

    now = as_before(Config(**options), saved.config)
    for name in options:
        if name not in MAY_CHANGE and getattr(now, name) != getattr(saved.config, name):
            raise ConfigError(
                f"{name}: the run was begun with {getattr(saved.config, name)!r}, and on resuming only "
                f"{', '.join(MAY_CHANGE[:-1])} and {MAY_CHANGE[-1]} may change"
            )
    config = saved.config.replace(**{name: options[name] for name in MAY_CHANGE if name in options})
    if saved.progress.get("epoch", 0) >= config.epochs and not may_be_done:
        raise ConfigError(f"{folder}: all {config.epochs} epochs are done; give more --epochs to go on")
    return config


def free_folder(data: str) -> Path:
    name = Path(data).name.split(".")[0] or "data"
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


def _read(
    arguments: argparse.Namespace, saved: SavedModel | None, hold_out: float | None, folder: Path, seed: int
) -> tuple[Data, Data | None]:
    """The data to train on and to test on, with the same columns."""
    from dslide.cli.models import load_for, load_like
    from dslide.data import load

    options = reading_options(arguments)
    stream = is_stream(options, saved)
    words = token_options(arguments, saved, stream)
    data: Data
    if stream:
        text_options(arguments)  # refused if there are any
        data = load_stream(arguments.data, options, words)
    elif saved is None:
        data = load(arguments.data, **options, **text_options(arguments))
    else:
        options.pop("label_names", None)
        data = load_for(saved, arguments.data, options)
    test: Data | None = None
    if hold_out is not None:
        data, test = data.split(hold_out, seed)
    if saved is not None and data.checksum != saved.progress.get("data"):
        raise DataError(f"{arguments.data}: not the data that {folder} was trained on")
    if data.features == 0 or data.labels == 0:
        raise DataError(f"{arguments.data}: there are no {'labels' if data.features else 'features'} in it")
    if arguments.test is None:
        return data, test
    if data.users is not None:
        return data, load(arguments.test, format="interactions", history=data)
    as_given = {"format": options["format"], "base": options["base"]}
    if stream:
        return data, load_stream(arguments.test, as_given, words, data.label_names)
    return data, load_like(arguments.test, as_given, data.vectorizer, data.label_names, data.base, data.features)
