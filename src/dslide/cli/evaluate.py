"""dslide evaluate: metrics of a trained network, and what approximate prediction costs in accuracy."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .models import load_for, open_model, pieces
from .options import add_reading_options, describe, reading_options, whole_number

if TYPE_CHECKING:
    from ..data import Dataset, SparseRows
    from ..network import Network

METRICS = {"p": "P@k", "r": "R@k", "ndcg": "nDCG@k", "psp": "PSP@k"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model")
    parser.add_argument("data", metavar="DATA", help="data with labels")
    parser.add_argument("--k", default="1,3,5", metavar="N,N,...", help="ranks to report (default: 1,3,5)")
    parser.add_argument(
        "--approximate",
        action="store_true",
        help="also predict through the hash tables, and compare accuracy and speed (default: no)",
    )
    parser.add_argument(
        "--threads", type=whole_number, default=0, metavar="N", help="threads; 0: one per core (default: 0)"
    )
    add_reading_options(parser, sizes=False)


def run(arguments: argparse.Namespace) -> int:
    ks = parse_ks(arguments.k)
    saved, network = open_model(arguments.model, arguments.threads)
    data = load_for(saved, arguments.data, reading_options(arguments))
    print(describe(str(arguments.data), data))

    result = evaluate(network.predict_topk, network, data, saved.label_counts, saved.rows, ks)
    print(table(result, ks))
    print(f"exact prediction: {result['rows_per_second']:,.0f} rows/s")
    if arguments.approximate:
        quick = evaluate(network.predict_topk_approximate, network, data, saved.label_counts, saved.rows, ks)
        print("\nthrough the hash tables:")
        print(table(quick, ks))
        print(f"approximate prediction: {quick['rows_per_second']:,.0f} rows/s")
        for k in ks:
            print(f"share of the exact top {k} that it finds: {_agreement(network, data.x, k):.4f}")
    return 0


def parse_ks(text: str) -> tuple[int, ...]:
    """Ranks like 1,3,5."""
    try:
        ks = sorted({int(part) for part in text.split(",")})
    except ValueError:
        ks = []
    if not ks or ks[0] < 1 or ks[-1] > 10_000:
        raise ConfigError(f"--k: expected whole numbers from 1 to 10000 like 1,3,5, not {text!r}")
    return tuple(ks)


def evaluate(
    predict: Callable[[SparseRows, int], tuple[Any, Any]],
    network: Network,
    data: Dataset,
    label_counts: Any,
    rows: int,
    ks: Sequence[int],
) -> dict[str, float]:
    """Metrics of a way to predict, and its rows_per_second."""
    from ..metrics import Evaluation

    evaluation = Evaluation(ks, label_counts, rows)
    seconds = 0.0
    for begin, end in pieces(len(data.x)):
        x = data.x.rows(begin, end)
        start = time.perf_counter()
        ids, _ = predict(x, min(max(ks), network.labels))
        seconds += time.perf_counter() - start
        evaluation.update(ids, data.y.rows(begin, end))
    return evaluation.result() | {"rows_per_second": len(data.x) / max(seconds, 1e-9)}


def table(result: dict[str, float], ks: Sequence[int]) -> str:
    """The metrics, one line each, a column for each k."""
    lines = [f"{'k':>8}" + "".join(f"{k:>9}" for k in ks)]
    for name, title in METRICS.items():
        if f"{name}_at_{ks[0]}" in result:
            lines.append(f"{title:>8}" + "".join(f"{result[f'{name}_at_{k}']:>9.4f}" for k in ks))
    lines.append(
        f"over {result['rows']:,.0f} rows; {result['rows_without_labels']:,.0f} without labels left out"
    )
    return "\n".join(lines)


def _agreement(network: Network, x: SparseRows, k: int) -> float:
    """The mean share of the exact top k that is also in the approximate top k."""
    k = min(k, network.labels)
    found = 0
    for begin, end in pieces(len(x)):
        exact, _ = network.predict_topk(x.rows(begin, end), k)
        quick, _ = network.predict_topk_approximate(x.rows(begin, end), k)
        found += int((exact[:, :, None] == quick[:, None, :]).sum())
    return found / max(len(x) * k, 1)
