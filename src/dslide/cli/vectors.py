"""dslide vectors: the word vectors of a trained network, as a file that other tools read."""

from __future__ import annotations

import argparse

from dslide.cli.options import add_switch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model, with named features")
    target = "file to make, in word2vec's text format; it must not exist (default: none, it has to be given)"
    add_switch(parser, "--labels", "of labels, by the output layer, instead of words or items")
    parser.add_argument("--output", metavar="FILE", required=True, help=target)


def run(arguments: argparse.Namespace) -> None:
    from dslide.checkpoint.vectors import Vectors

    vectors = Vectors.open(arguments.model, "labels" if arguments.labels else "features")
    vectors.save(arguments.output)
    print(f"wrote {len(vectors):,} vectors of {vectors.matrix.shape[1]:,} numbers to {arguments.output}")
