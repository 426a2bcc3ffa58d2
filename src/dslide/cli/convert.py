"""dslide convert: data into a folder that is mapped instead of read."""

from __future__ import annotations

import argparse

from dslide.cli.options import add_reading_options, reading_options
from dslide.util.terminal import command, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="IN", help="data in any format that is read")
    parser.add_argument("out", metavar="OUT", help="folder to make; it must not exist")
    add_reading_options(parser, text=True)


def run(arguments: argparse.Namespace) -> None:
    from dslide.data import convert
    from dslide.training.reading import Reading

    convert(arguments.data, arguments.out, **Reading.of(reading_options(arguments)).load_options(arguments.data))
    print(f"wrote {printable(arguments.out)}; use it like the file: {command('train', arguments.out)}")
