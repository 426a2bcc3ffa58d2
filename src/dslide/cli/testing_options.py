"""Options of `dslide train` that say what the network is measured on, and when."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dslide.cli.options import number, whole_number
from dslide.errors import ConfigError

if TYPE_CHECKING:
    from dslide.checkpoint.saved_model import SavedModel


def add_testing_options(parser: argparse.ArgumentParser) -> None:
    """Test data of its own or held out of DATA, and testing along the way."""
    group = parser.add_argument_group("testing")
    group.add_argument("--test", metavar="FILE", help="data to measure the trained network on (default: none)")
    group.add_argument(
        "--hold-out",
        type=number,
        metavar="SHARE",
        help="share of DATA's rows, chosen at random, to measure on instead of training on them (default: none)",
    )
    group.add_argument(
        "--test-every",
        type=whole_number,
        default=0,
        metavar="N",
        help="measure after every so many epochs too; 0: only at the end (default: 0)",
    )
    group.add_argument(
        "--test-rows",
        type=whole_number,
        default=0,
        metavar="N",
        help="test rows, chosen at random, that --test-every measures on; 0: all (default: 0)",
    )


def check_testing_options(arguments: argparse.Namespace) -> None:
    """ConfigError for values that make no sense, or not together."""
    share = arguments.hold_out
    if share is not None and not 0 < share < 1:
        raise ConfigError(f"--hold-out: expected a share above 0 and below 1, not {share:g}")
    if share is not None and arguments.test is not None:
        raise ConfigError("--hold-out: there is test data already, given by --test")
    for name in ("test_every", "test_rows"):
        if (value := getattr(arguments, name)) < 0:
            raise ConfigError(f"--{name.replace('_', '-')}: expected at least 0, not {value}")
    if arguments.test_rows and not arguments.test_every:
        raise ConfigError("--test-rows: is for testing along the way, but --test-every is not given")


def held_out_share(arguments: argparse.Namespace, saved: SavedModel | None) -> float | None:
    """The share of the data to hold out, that of the run that is resumed if one is; ConfigError if what is given does
    not go with it."""
    share: float | None = arguments.hold_out
    if saved is not None:
        begun: float | None = saved.progress.get("hold_out")
        if share not in (None, begun):
            with_what = "none" if begun is None else f"{begun:g}"
            raise ConfigError(f"--hold-out: the run was begun with {with_what}, and on resuming that can't change")
        if begun is not None and arguments.test is not None:
            raise ConfigError(f"--test: the run was begun with --hold-out {begun:g}, and is tested on those rows")
        share = begun
    if arguments.test_every and share is None and arguments.test is None:
        raise ConfigError("--test-every: there is no test data; give --test or --hold-out")
    return share
