"""dslide synth: random data of a given shape, with a rule that a network can learn."""

from __future__ import annotations

import argparse

from dslide.cli.options import add_option
from dslide.util.terminal import command, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="folder to create; it must not exist yet")
    for name, default, help_text in (
        ("rows", 10_000, "rows to train on"),
        ("test-rows", 1_000, "rows to test on"),
        ("features", 10_000, "number of features"),
        ("labels", 5_000, "number of labels"),
        ("seed", 0, "seed of all random numbers"),
    ):
        add_option(parser, f"--{name}", help_text, default)


def run(arguments: argparse.Namespace) -> None:
    from dslide.data import synthesize

    out, test_rows = arguments.out, arguments.test_rows
    synthesize(out, arguments.rows, arguments.features, arguments.labels, test_rows, arguments.seed)
    test = ("--test", f"{out}/test.txt") if test_rows else ()
    words = command("train", f"{out}/train.txt", *test, "--label-names", f"{out}/labels.txt")
    print(f"wrote {printable(out)}; next: {words}")
