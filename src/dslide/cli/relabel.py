"""dslide relabel: a model with fewer labels, or with other names of labels."""

from __future__ import annotations

import argparse

from dslide.cli.options import add_option
from dslide.errors import DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model")
    parser.add_argument("out", metavar="OUT", help="model folder to create; it must not exist yet")
    add_option(parser, "--remove", "file with the labels to remove, one name per line", "none", "FILE")
    add_option(parser, "--rename", "file with one label per line: its name, a tab, and its new name", "none", "FILE")


def run(arguments: argparse.Namespace) -> None:
    from dslide.checkpoint.relabel import relabel
    from dslide.data import read_names

    renamed: dict[str, str] = {}
    for line, text in enumerate(read_names(arguments.rename) if arguments.rename else (), 1):
        name, tab, new = text.partition("\t")
        if not (name and tab and new) or "\t" in new:
            raise DataError(f"{arguments.rename}, line {line}: expected a name, a tab and a new name, found {text!r}")
        renamed[name] = new
    removed = read_names(arguments.remove) if arguments.remove else []
    relabel(arguments.model, arguments.out, remove=removed, rename=renamed)
    print(f"wrote {arguments.out}, without {len(removed):,} labels and with other names of {len(renamed):,}")
