"""dslide index: makes what approximate prediction looks labels up in, and saves it with the model."""

from __future__ import annotations

import argparse

from dslide.cli.options import add_option, add_reading_options, reading_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model; its index is replaced")
    add_option(parser, "--rows", "data with rows like those to predict for", "the last ones of training", "DATA")
    add_reading_options(parser, sizes=False)


def run(arguments: argparse.Namespace) -> None:
    from dslide.training.index import make_index

    found = make_index(arguments.model, arguments.rows, **reading_options(arguments))
    print(
        f"{arguments.model}: {found.cells} cells in {found.seconds:.1f} s; they have {found.recall:.1%} of the best 5 "
        "labels of some of the rows, without the label prior"
    )
