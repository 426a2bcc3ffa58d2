"""dslide convert: data into a folder that is mapped instead of read."""

from __future__ import annotations

import argparse

from dslide.cli.options import add_option, add_reading_options, reading_options
from dslide.util.terminal import command, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "data in any supported format: a file, several files, or patterns like 'part-*.tsv.gz'"
    parser.add_argument("data", metavar="IN", nargs="+", help=what)
    parser.add_argument("out", metavar="OUT", help="folder to create; it must not exist yet")
    add_option(parser, "--threads", "number of threads or processes that read", "one per core")
    add_reading_options(parser, text=True)


def run(arguments: argparse.Namespace) -> None:
    from dslide.data import convert
    from dslide.data.convert import expand
    from dslide.training.reading import Reading

    paths = expand(arguments.data)
    options = Reading.of(reading_options(arguments)).load_options(paths[0])
    convert(paths, arguments.out, threads=arguments.threads, progress=lambda line: print(line, flush=True), **options)
    print(f"wrote {printable(arguments.out)}; use it like the file: {command('train', arguments.out)}")
