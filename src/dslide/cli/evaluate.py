"""dslide evaluate: metrics of a trained network, and what approximate prediction costs in accuracy."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dslide.cli.models import load_for, open_model, pieces
from dslide.cli.options import (
    add_k_option,
    add_reading_options,
    default_ks,
    describe,
    parse_ks,
    reading_options,
    whole_number,
)
from dslide.cli.ranks import add_rank_options
from dslide.comm import job
from dslide.errors import ConfigError

if TYPE_CHECKING:
    from dslide.checkpoint.saved_model import SavedModel
    from dslide.data import Data, SparseRows
    from dslide.model.network import Network
    from dslide.util.arrays import Ids

METRICS = {"p": "P@k", "r": "R@k", "ndcg": "nDCG@k", "psp": "PSP@k"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model")
    parser.add_argument("data", metavar="DATA", help="data with labels")
    add_k_option(parser)
    parser.add_argument(
        "--history",
        metavar="FILE",
        help="with interactions: the earlier ones of the users in DATA, which are not predicted again (default: none)",
    )
    parser.add_argument(
        "--approximate",
        action="store_true",
        help="also predict through the hash tables, and compare accuracy and speed (default: no)",
    )
    parser.add_argument(
        "--threads", type=whole_number, default=0, metavar="N", help="threads; 0: one per core (default: 0)"
    )
    add_reading_options(parser, sizes=False)
    add_rank_options(parser)


def run(arguments: argparse.Namespace) -> int:
    ks = parse_ks(arguments.k)
    comm = job()
    saved, network = open_model(arguments.model, comm, arguments.threads)
    data = comm.together("reading the data", lambda: _read(saved, arguments))
    ks = ks or default_ks(data)
    say = print if comm.rank == 0 else _nothing
    say(describe(str(arguments.data), data))

    result, exact = evaluate(network.predict_topk, network, data, saved.label_counts, saved.rows, ks)
    say(table(result, ks))
    say(loss_line(exact_loss(network, data)))
    say(f"exact prediction: {result['rows_per_second']:,.0f} rows/s")
    if arguments.approximate:
        start = time.perf_counter()
        network.prediction_tables()
        say(f"\nthrough hash tables, made in {time.perf_counter() - start:.2g} s:")
        predict = network.predict_topk_approximate
        result, quick = evaluate(predict, network, data, saved.label_counts, saved.rows, ks)
        say(table(result, ks))
        say(f"approximate prediction: {result['rows_per_second']:,.0f} rows/s")
        for k in ks:
            say(f"share of the exact top {k} that it finds: {agreement(exact, quick, k):.4f}")
    comm.barrier("the end")
    return 0


def _read(saved: SavedModel, arguments: argparse.Namespace) -> Data:
    data = load_for(saved, arguments.data, reading_options(arguments), arguments.history)
    if data.users is not None and arguments.history is None:
        raise ConfigError(f"history: {arguments.data} holds interactions; give the users' earlier ones as --history")
    return data


def _nothing(*_: object) -> None:
    """What ranks other than the first have to say."""


def evaluate(
    predict: Callable[[SparseRows, int, SparseRows | None], tuple[Any, Any]],
    network: Network,
    data: Data,
    label_counts: Any,
    rows: int,
    ks: Sequence[int],
) -> tuple[dict[str, float], Ids]:
    """Metrics of a way to predict with its rows_per_second, and the ids it predicts."""
    import numpy as np

    from dslide.training.metrics import Evaluation

    evaluation = Evaluation(ks, label_counts, rows)
    seconds, all_ids = 0.0, []
    for begin, end in pieces(len(data)):
        x, y = data.rows(begin, end)
        seen = None if data.seen is None else data.seen.part(begin, end)
        start = time.perf_counter()
        ids, _ = predict(x, min(max(ks), network.labels), seen)
        seconds += time.perf_counter() - start
        evaluation.update(ids, y)
        all_ids.append(ids)
    speed = {"rows_per_second": len(data) / max(seconds, 1e-9)}
    return evaluation.result() | speed, np.concatenate(all_ids)


def exact_loss(network: Network, data: Data) -> float:
    """The mean loss over the rows that have labels, with no label left out of the sums."""
    total, rows = 0.0, 0
    for begin, end in pieces(len(data)):
        loss, counted = network.exact_loss_sum(*data.rows(begin, end))
        total, rows = total + loss, rows + counted
    return total / rows if rows else float("nan")


def loss_line(loss: float) -> str:
    """The loss in words."""
    return f"loss over all labels: {loss:.4f}"


def table(result: dict[str, float], ks: Sequence[int]) -> str:
    """The metrics, one line each, a column for each k."""
    lines = [f"{'k':>8}" + "".join(f"{k:>9}" for k in ks)]
    for name, title in METRICS.items():
        if f"{name}_at_{ks[0]}" in result:
            lines.append(f"{title:>8}" + "".join(f"{result[f'{name}_at_{k}']:>9.4f}" for k in ks))
    lines.append(f"over {result['rows']:,.0f} rows; {result['rows_without_labels']:,.0f} without labels left out")
    return "\n".join(lines)


def agreement(exact: Ids, quick: Ids, k: int) -> float:
    """The mean share of each row's exact top k that is also in its approximate top k."""
    found = sum(len(set(a) & set(b)) for a, b in zip(exact[:, :k].tolist(), quick[:, :k].tolist(), strict=True))
    return found / max(exact[:, :k].size, 1)
