"""dslide predict: the best labels of each row, one line per row."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from dslide.checkpoint.saved_model import SavedModel
from dslide.cli.options import add_option, add_reading_options, add_switch, reading_options
from dslide.cli.ranks import add_rank_options
from dslide.comm import Communicator
from dslide.data import Data, SparseRows
from dslide.errors import ConfigError, DataError
from dslide.training.evaluation import BLOCK_ROWS, row_blocks
from dslide.training.inference import Model, open_model
from dslide.training.reading import load_for, vectorizer_of
from dslide.util.atomic import new_file

_IN_ONE_LINE = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model")
    what = "data, or - for lines from stdin: text or interactions if the model was trained on them, else libsvm"
    parser.add_argument("data", metavar="DATA", help=what)
    add_option(parser, "--k", "labels for each row", 5)
    add_option(parser, "--output", "where to write", "stdout", "FILE")
    add_switch(parser, "--approximate", "look only at neurons found by hashing: faster")
    add_switch(parser, "--scores", "write label:score")
    add_option(parser, "--threads", "threads; 0: one per core", 0)
    add_reading_options(parser, sizes=False)
    add_rank_options(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.k < 1:
        raise ConfigError(f"--k: expected at least 1, not {arguments.k}")
    model = open_model(arguments.model, threads=arguments.threads)
    network, comm, output = model.network, model.comm, arguments.output
    predict = network.predict_topk_approximate if arguments.approximate else network.predict_topk
    blocks = _rows(model, arguments)
    with new_file(output) if output and comm.rank == 0 else nullcontext(sys.stdout) as file:
        for x, seen in blocks:
            ids, scores = predict(x, min(arguments.k, network.labels), seen)
            if comm.rank == 0:
                _write(file, ids, scores if arguments.scores else None, model.saved)
    comm.barrier("the end")


def _rows(model: Model, arguments: argparse.Namespace) -> Iterator[tuple[SparseRows, SparseRows | None]]:
    """The features of all rows, and labels that are not to be predicted, in blocks."""
    options = reading_options(arguments)
    if arguments.data != "-":
        data = model.read(arguments.data, **options)
    elif (vectorizer := vectorizer_of(model.saved)) is not None:
        return ((vectorizer.transform(lines), None) for lines in _stdin(model.comm))
    else:
        data = _read_stdin(model, options)
    seen = data.seen
    return (
        (data.rows(begin, end)[0], None if seen is None else seen.part(begin, end))
        for begin, end in row_blocks(len(data))
    )


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


def _write(file: TextIO, ids: Any, scores: Any, saved: SavedModel) -> None:
    """A line per row: labels by name, or by the number the training data has for them. -1 is no label."""
    names = saved.label_names
    for row, labels in enumerate(ids.tolist()):
        cells = []
        for rank, label in enumerate(labels):
            if label >= 0:
                name = str(label + saved.base) if names is None else names[label].translate(_IN_ONE_LINE)
                cells.append(name if scores is None else f"{name}:{scores[row, rank]:.6g}")
        file.write("\t".join(cells) + "\n")
