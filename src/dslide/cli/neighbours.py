"""dslide neighbours: the words nearest to some words, by the cosine of their vectors."""

from __future__ import annotations

import argparse

from dslide.cli.options import add_option
from dslide.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model, with named features")
    parser.add_argument("words", metavar="WORD", nargs="+", help="words to find the neighbours of")
    add_option(parser, "--k", "neighbours of each word", 10)


def run(arguments: argparse.Namespace) -> None:
    if arguments.k < 1:
        raise ConfigError(f"--k: expected at least 1, not {arguments.k}")
    from dslide.checkpoint.vectors import Vectors

    vectors = Vectors.open(arguments.model)
    found = [vectors.nearest(word, arguments.k) for word in arguments.words]
    for word, near in zip(arguments.words, found, strict=True):
        print("\t".join([word, *(f"{name}:{cosine:.4f}" for name, cosine in near)]))
