"""dslide plan: the memory a network needs, before anything is allocated."""

from __future__ import annotations

import argparse

from ..config import Config
from ..errors import ConfigError
from ..memory import available_bytes, format_bytes, parse_bytes
from .options import add_config_options, add_reading_options, given, reading_options, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", metavar="DATA", nargs="?", help="data to train on; without it, give the numbers below"
    )
    for name in ("rows", "nonzeros"):
        parser.add_argument(
            f"--{name}",
            type=whole_number,
            default=0,
            metavar="N",
            help=f"{name} of the data, without DATA (default: 0)",
        )
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory to fit into, like 8GB (default: what is free here)"
    )
    add_reading_options(parser)
    add_config_options(parser)


def run(arguments: argparse.Namespace) -> int:
    config = Config(**given(arguments, Config))
    available = available_bytes() if arguments.memory is None else parse_bytes(arguments.memory)
    features, labels = arguments.features, arguments.labels
    rows, nonzeros = arguments.rows, arguments.nonzeros
    if arguments.data is not None:
        from ..data import load

        data = load(arguments.data, **reading_options(arguments))
        features, labels = data.x.columns, data.y.columns
        rows, nonzeros = len(data.x), data.x.nnz + data.y.nnz
    elif features is None or labels is None:
        raise ConfigError("without DATA, --features and --labels are needed")
    for name, value in (("features", features), ("labels", labels)):
        if value < 1:
            raise ConfigError(f"--{name}: expected at least 1, not {value}")

    from ..plan import plan

    needed = plan(config, features, labels, rows, nonzeros)
    print("\n".join(needed.lines()))
    fits = "fits" if needed.bytes_total <= available else "does not fit"
    print(f"{format_bytes(needed.bytes_total)} {fits} into {format_bytes(available)}")
    return 0
