"""dslide plan: the memory a network needs and the time it will take, before anything is allocated."""

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
    add_config_options(parser)


def run(arguments: argparse.Namespace) -> int:
    config = Config(**given(arguments, Config))
    available = available_bytes() if arguments.memory is None else parse_bytes(arguments.memory)
    features, labels = arguments.features, arguments.labels
    rows = arguments.rows
    x_nonzeros, y_nonzeros = rows * arguments.features_per_row, rows * arguments.labels_per_row
    if arguments.data is not None:
        from ..data import load

        data = load(arguments.data, **reading_options(arguments))
        features, labels = data.x.columns, data.y.columns
        rows, x_nonzeros, y_nonzeros = len(data.x), data.x.nnz, data.y.nnz
    elif features is None or labels is None:
        raise ConfigError("without DATA, --features and --labels are needed")
    for name, value in (("features", features), ("labels", labels)):
        if value < 1:
            raise ConfigError(f"--{name}: expected at least 1, not {value}")

    from ..plan import plan

    most = min(labels, *config.hidden)
    if not 1 <= arguments.ranks <= most:
        raise ConfigError(f"--ranks: expected 1 to {most} for this network, not {arguments.ranks}")
    needed = plan(config, features, labels, rows, x_nonzeros + y_nonzeros, arguments.ranks)
    print("\n".join(needed.lines()))
    fits = "fits" if needed.bytes_total <= available else "does not fit"
    print(f"{format_bytes(needed.bytes_total)} {fits} into {format_bytes(available)}")
    if arguments.ranks > 1:
        print(f"`dslide doctor --ranks {arguments.ranks}`, or with --hosts, says how fast they would be")
    else:
        print(_time(config, features, labels, rows, x_nonzeros, y_nonzeros))
    return 0


def _time(config: Config, features: int, labels: int, rows: int, x_nonzeros: int, y_nonzeros: int) -> str:
    """What a second's measurement of a smaller network says about the time."""
    from ..progress import clock
    from ..timing import seconds_per_step

    per_row = {"features_per_row": x_nonzeros / rows, "labels_per_row": y_nonzeros / rows} if rows else {}
    step = seconds_per_step(config, features, labels, **per_row)
    text = f"about {config.batch_size / step:,.0f} samples/s on this machine"
    if rows:
        epoch = rows / config.batch_size * step
        text += f": {clock(epoch)} for an epoch, {clock(epoch * config.epochs)} for all {config.epochs}"
    return text + " (from timing a smaller network for a second)"
