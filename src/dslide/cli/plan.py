"""dslide plan: the memory a network needs and the time it will take, before anything is allocated."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..config import Config
from ..errors import ConfigError
from ..memory import available_bytes, format_bytes, parse_bytes
from .options import add_config_options, add_reading_options, given, reading_options, whole_number
from .tokens import add_token_options, is_stream, load_stream, token_options

if TYPE_CHECKING:
    from ..data import Data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", metavar="DATA", nargs="?", help="data to train on; without it, give the numbers below"
    )
    for name, default in (("rows", 0), ("features-per-row", 75), ("labels-per-row", 5)):
        parser.add_argument(
            f"--{name}",
            type=whole_number,
            default=default,
            metavar="N",
            help=f"{name.replace('-', ' ')} of the data, without DATA (default: {default})",
        )
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory to fit into, like 8GB (default: what is free here)"
    )
    parser.add_argument(
        "--ranks", type=whole_number, default=1, metavar="N", help="ranks that share the network (default: 1)"
    )
    add_reading_options(parser)
    add_token_options(parser)
    add_config_options(parser)


def run(arguments: argparse.Namespace) -> int:
    config = Config(**given(arguments, Config))
    available = available_bytes() if arguments.memory is None else parse_bytes(arguments.memory)
    features, labels = arguments.features, arguments.labels
    rows, per_row = arguments.rows, (arguments.features_per_row, arguments.labels_per_row)
    data_bytes, linked = 0, True
    if arguments.data is not None:
        from ..choices import for_data
        from ..data import Dataset

        data = _read(arguments)
        config = for_data(config, data)
        features, labels = data.features, data.labels
        linked = isinstance(data, Dataset)
        rows, per_row, data_bytes = data.rows_per_epoch, data.values_per_row, data.data_bytes
    elif rows:
        from ..data.dataset import rows_bytes

        data_bytes = rows_bytes(rows, rows * sum(per_row))
    if features is None or labels is None:
        raise ConfigError("without DATA, --features and --labels are needed")
    for name, value in (("features", features), ("labels", labels)):
        if value < 1:
            raise ConfigError(f"--{name}: expected at least 1, not {value}")

    from ..plan import plan

    most = min(labels, *config.hidden)
    if not 1 <= arguments.ranks <= most:
        raise ConfigError(f"--ranks: expected 1 to {most} for this network, not {arguments.ranks}")
    needed = plan(config, features, labels, data_bytes, arguments.ranks, linked=linked)
    print("\n".join(needed.lines()))
    fits = "fits" if needed.bytes_total <= available else "does not fit"
    print(f"{format_bytes(needed.bytes_total)} {fits} into {format_bytes(available)}")
    if arguments.ranks > 1:
        print(f"`dslide doctor --ranks {arguments.ranks}`, or with --hosts, says how fast they would be")
    else:
        print(_time(config, features, labels, rows, *per_row))
    return 0


def _read(arguments: argparse.Namespace) -> Data:
    from ..data import load

    options = reading_options(arguments)
    stream = is_stream(options, None)
    words = token_options(arguments, None, stream)
    return load_stream(arguments.data, options, words) if stream else load(arguments.data, **options)


def _time(
    config: Config, features: int, labels: int, rows: int, features_per_row: float, labels_per_row: float
) -> str:
    """What a second's measurement of a smaller network says about the time."""
    from ..progress import clock
    from ..timing import seconds_per_step

    step = seconds_per_step(config, features, labels, features_per_row, labels_per_row)
    text = f"about {config.batch_size / step:,.0f} samples/s on this machine"
    if rows:
        epoch = rows / config.batch_size * step
        text += f": {clock(epoch)} for an epoch, {clock(epoch * config.epochs)} for all {config.epochs}"
    return text + " (from timing a smaller network for a second)"
