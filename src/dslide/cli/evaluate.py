"""dslide evaluate: metrics of a trained network, and what approximate prediction costs in accuracy."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence

from dslide.cli.options import (
    add_json_option,
    add_k_option,
    add_option,
    add_reading_options,
    add_switch,
    describe,
    reading_options,
)
from dslide.cli.ranks import add_rank_options

METRICS = {"p": "P@k", "r": "R@k", "ndcg": "nDCG@k", "psp": "PSP@k", "coverage": "coverage"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model")
    parser.add_argument("data", metavar="DATA", help="data with labels")
    add_k_option(parser)
    earlier = "with interactions: the earlier ones of the users in DATA, which are not predicted again"
    add_option(parser, "--history", earlier, "none", "FILE")
    add_switch(parser, "--approximate", "also predict among labels that are looked up, and compare accuracy and speed")
    add_json_option(parser, "write one object of JSON")
    add_option(parser, "--threads", "threads; 0: one per core", 0)
    add_reading_options(parser, sizes=False)
    add_rank_options(parser)


def run(arguments: argparse.Namespace) -> None:
    from dslide.api import evaluate
    from dslide.training.evaluation import checked_ks, default_ks
    from dslide.training.inference import open_model

    ks = checked_ks(arguments.k)
    model = open_model(arguments.model, threads=arguments.threads)
    data = model.read(arguments.data, history=arguments.history, to_evaluate=True, **reading_options(arguments))
    if model.comm.rank == 0 and not arguments.json:
        print(describe(str(arguments.data), data), flush=True)
    metrics = evaluate(model, data, k=ks, approximate=arguments.approximate)
    if model.comm.rank == 0 and arguments.json:
        known = {name: None if math.isnan(value) else value for name, value in metrics.items()}
        print(json.dumps({"data": str(arguments.data), **known}))
    elif model.comm.rank == 0:
        print_metrics(metrics, ks or default_ks(data))
    model.comm.barrier("the end")


def print_metrics(metrics: Mapping[str, float], ks: Sequence[int]) -> None:
    """What `dslide.evaluate` returned."""
    print(metrics_table(metrics, ks))
    print(f"exact prediction: {metrics['rows_per_second']:,.0f} rows/s")
    if "approximate_rows_per_second" not in metrics:
        return
    print(f"\napproximate prediction, after {metrics['approximate_index_seconds']:.2g} s to open or make its index:")
    print(metrics_table(metrics, ks, "approximate_"))
    print(f"approximate prediction: {metrics['approximate_rows_per_second']:,.0f} rows/s")
    for k in ks:
        print(f"share of the exact top {k} that it finds: {metrics[f'approximate_recall_of_exact_at_{k}']:.4f}")


def metrics_table(metrics: Mapping[str, float], ks: Sequence[int], prefix: str = "") -> str:
    """The metrics, one line each, a column for each k; then the rows and, of exact prediction, the loss."""
    lines = [f"{'k':>8}" + "".join(f"{k:>9}" for k in ks)]
    for name, title in METRICS.items():
        if f"{prefix}{name}_at_{ks[0]}" in metrics:
            lines.append(f"{title:>8}" + "".join(f"{metrics[f'{prefix}{name}_at_{k}']:>9.4f}" for k in ks))
    lines.append(f"over {metrics['rows']:,.0f} rows; {metrics['rows_without_labels']:,.0f} without labels left out")
    if not prefix:
        lines.append(f"loss over all labels: {metrics['loss']:.4f}")
    return "\n".join(lines)
