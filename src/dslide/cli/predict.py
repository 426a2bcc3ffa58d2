"""dslide predict: the best labels of each row, one line per row."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from dslide.cli.options import add_json_option, add_option, add_reading_options, add_switch, reading_options
from dslide.cli.ranks import add_rank_options
from dslide.comm import Communicator
from dslide.data import Data
from dslide.errors import ConfigError, DataError
from dslide.training.evaluation import BLOCK_ROWS
from dslide.training.inference import Model, open_model
from dslide.training.predictions import (
    Block,
    Prediction,
    blocks_of,
    checked_threshold,
    has_probabilities,
    predict_blocks,
)
from dslide.training.reading import load_for
from dslide.util.atomic import new_file
from dslide.util.terminal import json_line, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model")
    what = "data, or - for lines from stdin: text or interactions if the model was trained on them, else libsvm"
    parser.add_argument("data", metavar="DATA", nargs="?", help=what)
    items = "with a model of interactions: items of a user, instead of DATA (default: none)"
    parser.add_argument("--items", metavar="ITEM", nargs="+", help=items)
    add_option(parser, "--k", "number of labels for each row", 5)
    add_option(parser, "--output", "file to write to", "stdout", "FILE")
    add_switch(parser, "--approximate", "score only labels that are looked up, which is faster")
    add_switch(parser, "--scores", "write label:score")
    add_switch(parser, "--probabilities", "write label:probability")
    add_option(parser, "--threshold", "smallest probability of a label to be written, 0 to 1", "none", "P", _number)
    what = "number of features that influenced each label's score most, written on lines of their own"
    add_option(parser, "--why", what, 0)
    add_json_option(parser, "write JSON Lines: row, user, labels with numbers, names, scores and probabilities")
    add_option(parser, "--threads", "threads; 0: one per core", 0)
    add_reading_options(parser, sizes=False)
    add_rank_options(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.k < 1:
        raise ConfigError(f"--k: expected at least 1, not {arguments.k}")
    if (arguments.data is None) == (arguments.items is None):
        raise ConfigError("DATA: give data to predict, or --items of a user")
    if arguments.scores and arguments.probabilities:
        raise ConfigError("--scores: goes without --probabilities, or use --json, which writes both")
    if arguments.why < 0:
        raise ConfigError(f"--why: expected a number of features, not {arguments.why}")
    threshold = checked_threshold(arguments.threshold or 0.0)
    model = open_model(arguments.model, threads=arguments.threads)
    if arguments.probabilities and not has_probabilities(model):
        raise ConfigError("--probabilities: the model's scores are good for ranking only")
    write(model, _blocks(model, arguments), arguments.k, arguments.output, line_writer(arguments),
          arguments.json or arguments.probabilities, arguments.approximate, threshold, arguments.why)  # fmt: skip
    model.comm.barrier("the end")


def write(
    model: Model, blocks: Iterator[Block], k: int, output: str | None, line: Callable[[Prediction], str],
    probabilities: bool = False, approximate: bool = False, threshold: float = 0.0, why: int = 0,
) -> None:  # fmt: skip
    """Writes a line for each row, to a new file or to stdout."""
    with new_file(output) if output and model.comm.rank == 0 else nullcontext(sys.stdout) as file:
        for prediction in predict_blocks(model, blocks, k, approximate, probabilities, threshold, why):
            if model.comm.rank == 0:
                file.write(line(prediction) + "\n")


def line_writer(arguments: argparse.Namespace) -> Callable[[Prediction], str]:
    """What makes lines of predictions: labels between tabs, after the user if there is one; or JSON."""
    if arguments.json:
        return lambda found: json_line(found.to_dict())
    return lambda found: text_line(found, arguments.scores, arguments.probabilities)


def text_line(found: Prediction, scores: bool = False, probabilities: bool = False) -> str:
    """Labels between tabs, after the user if there is one; below it a line for each label that is explained."""
    names = plain = [printable(name) for name in found.names]
    if scores or probabilities:
        numbers = (found.probabilities or []) if probabilities else found.scores
        names = [f"{name}:{number:.6g}" for name, number in zip(names, numbers, strict=True)]
    line = "\t".join(names if found.user is None else [printable(found.user), *names])
    for name, reasons in zip(plain, found.why or [[]] * len(plain), strict=True):
        if reasons:
            words = (f"{printable(each.feature)} {each.score:+.3g}" for each in reasons)
            line += f"\n  {name}: {', '.join(words)}"
    return line


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, not {text!r}") from None


def _blocks(model: Model, arguments: argparse.Namespace) -> Iterator[Block]:
    """All rows, in blocks."""
    options = reading_options(arguments)
    if arguments.items is not None:
        return blocks_of(model.read([arguments.items]))
    if arguments.data != "-":
        return blocks_of(model.read(arguments.data, **options))
    if (vectorizer := model.vectorizer) is not None:
        return (Block(vectorizer.transform_rows(lines)) for lines in _stdin(model.comm))
    return blocks_of(_read_stdin(model, options))


def _read_stdin(model: Model, options: dict[str, Any]) -> Data:
    """What stdin has, read like a file."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "stdin"
        text = "".join(f"{line}\n" for lines in _stdin(model.comm) for line in lines)
        copy.write_text(text, "utf-8", "surrogateescape")

        def read() -> Data:
            try:
                return load_for(model.saved, copy, options)
            except DataError as error:
                raise DataError(str(error).replace(str(copy), "stdin")) from None

        return model.comm.together("reading the data", read)


def _stdin(comm: Communicator) -> Iterator[list[str]]:
    """Lines from stdin, as they come. Rank 0 reads them for all."""
    while True:
        lines = []
        if comm.rank == 0:
            raw = islice(sys.stdin.buffer, BLOCK_ROWS)
            lines = [line.decode("utf-8", "surrogateescape").rstrip("\r\n") for line in raw]
        lines = comm.gather_objects("stdin", lines)[0]
        if not lines:
            return
        yield lines
