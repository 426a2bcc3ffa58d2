"""dslide export: a smaller model folder, or plain arrays."""

from __future__ import annotations

import argparse
from pathlib import Path

from dslide.cli.options import add_option, add_reading_options, add_switch, reading_options
from dslide.errors import ConfigError
from dslide.training.export import export_arrays, export_model
from dslide.training.inference import open_model
from dslide.util.units import format_bytes

WEIGHTS = ("float32", "bf16", "int8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model")
    parser.add_argument("out", metavar="OUT", help="folder to create; it must not exist yet")
    parser.add_argument(
        "--weights", choices=WEIGHTS, help="type of the weights; int8, with one scale per row, takes a quarter of "
        "the space (default: as they are)",
    )  # fmt: skip
    add_switch(parser, "--optimizer", "with the state that resuming needs")
    add_switch(parser, "--arrays", "make .npy files instead: output vectors and biases, with --rows hidden vectors too")
    add_option(parser, "--rows", "with --arrays: data whose hidden vectors are written, too", "none", "DATA")
    add_reading_options(parser, sizes=False)


def run(arguments: argparse.Namespace) -> None:
    if arguments.rows is not None and not arguments.arrays:
        raise ConfigError("--rows: is for --arrays")
    if arguments.arrays:
        if arguments.weights is not None or arguments.optimizer:
            raise ConfigError("--arrays: are float32, and go with neither --weights nor --optimizer")
        model = open_model(arguments.model)
        rows = None if arguments.rows is None else model.read(arguments.rows, **reading_options(arguments))
        export_arrays(model, arguments.out, None if rows is None else rows.rows(0, len(rows))[0])
    else:
        export_model(arguments.model, arguments.out, arguments.weights, arguments.optimizer)
    size = sum(path.stat().st_size for path in Path(arguments.out).iterdir())
    print(f"wrote {format_bytes(size)} to {arguments.out}")
