"""dslide neighbours: the words or labels nearest to some, by the cosine of their vectors; of interactions the items
that go with some, by what is recommended to a user who has only that item."""

from __future__ import annotations

import argparse

from dslide.cli.options import add_option, add_switch
from dslide.errors import ConfigError
from dslide.util.terminal import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model")
    what = "words, or items of a model of interactions, to find the neighbours of"
    parser.add_argument("words", metavar="WORD", nargs="+", help=what)
    add_option(parser, "--k", "number of neighbours of each", 10)
    add_switch(parser, "--labels", "of labels, by the output layer's vectors, instead")


def run(arguments: argparse.Namespace) -> None:
    if arguments.k < 1:
        raise ConfigError(f"--k: expected at least 1, not {arguments.k}")
    from dslide.checkpoint.saved_model import load_model
    from dslide.checkpoint.vectors import Vectors

    saved = load_model(arguments.model, verify=True)
    if saved.interactions and not arguments.labels:
        from dslide.api import predict

        rows = predict(arguments.model, [[item] for item in arguments.words], k=arguments.k)
        found = [list(zip(row.names, row.scores, strict=True)) for row in rows]
    else:
        vectors = Vectors.of_model(saved, arguments.model, "labels" if arguments.labels else "features")
        found = [vectors.nearest(word, arguments.k) for word in arguments.words]
    for word, near in zip(arguments.words, found, strict=True):
        print("\t".join([printable(word), *(f"{printable(name)}:{score:.4f}" for name, score in near)]))
