"""How well the output neurons that matter for a row can be looked up, on a network trained here without a label prior:

    python -m bench.retrieval TRAIN TEST [--epochs 3] [--rows 600] [--batches 6] [--seed 0]

First table: the share of a test row's exact best five labels among as many candidates as a share of all labels.
Second table: the share of the probability mass of a training batch, labels of its rows left out, that an active set
catches: the labels of the batch, and so many more neurons. Third: the standard error of sampled sums of probabilities,
over the true ones (root mean square over rows and batches), with the weights that make them unbiased. In both, hits are
the 4 neurons that each row looks up, as in training; with them as many fewer are sampled. Fourth: what look-up costs on
one thread, how long a rebuild of all takes, and the labels that can't be found.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import dslide
from bench.lib.measuring import run_command
from bench.lib.tables import markdown_table
from dslide import _core
from dslide.data import Dataset, load
from dslide.model.activations import Dense
from dslide.model.cell_arrays import CELLS as CELLS_OF_PRODUCT
from dslide.model.cell_arrays import TRAINING_LABELS
from dslide.model.cells import Cells
from dslide.model.hash_parameters import HashParameters, automatic
from dslide.model.lsh import LshIndex
from dslide.model.negatives import inclusion_probabilities
from dslide.model.network import Network
from dslide.model.prediction import last_hidden
from dslide.model.retriever import Retriever
from dslide.util.arrays import aligned_zeros, padded

Matrix = npt.NDArray[np.floating]
Labels = npt.NDArray[np.int64]
Find = Callable[[int, int], Labels]  # (row, how many) -> candidates

SHARES = (0.0025, 0.005, 0.01, 0.02, 0.04)
TOP = 5
CELLS = (256, 1024)
SAMPLE = 16384  # rows that cells of hidden vectors are found in
ROUNDS = 8  # of k-means
BATCH = 256
MORE = (256, 512, 1024, 2048)
HITS = 4  # of a row in training


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.retrieval", description=__doc__.split("\n\n")[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=600, help="test rows (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=6, help="batches of training rows (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the network (default: %(default)s)")
    options = parser.parse_args()
    data = load(options.train)
    assert isinstance(data, Dataset)
    with tempfile.TemporaryDirectory() as folder:
        run = dslide.train(
            data, out=Path(folder) / "run", prior_labels=0, output="random", epochs=options.epochs, validation=0.0,
            seed=options.seed, threads=1,
        )  # fmt: skip
        test = dslide.open_model(run.folder).read(options.test)
        assert isinstance(test, Dataset)
    network = run.network
    print(f"{options.train}: {network.labels:,} labels, loss {network.config.loss}, {options.epochs} epochs\n")
    hidden = hidden_vectors(network, data, min(len(data), SAMPLE))
    recall(network, hidden, hidden_vectors(network, test, options.rows))
    retrievers = {"SimHash, 16 tables": tables(network, "simhash", 16), "cells": cells_of(network, TRAINING_LABELS)}
    masses(network, data, options.batches, retrievers)
    costs(network, hidden, retrievers)
    return 0


def hidden_vectors(network: Network, data: Dataset, rows: int) -> Matrix:
    """Of rows at even distances."""
    x = data.x.take(np.linspace(0, len(data) - 1, rows).astype(np.int64))
    parts = [last_hidden(network, x.part(begin, min(begin + 1024, rows))) for begin in range(0, rows, 1024)]
    found: Matrix = np.concatenate(
        [part.values[:, : network.output.inputs] for part in parts if isinstance(part, Dense)]
    )
    return found


def output(network: Network) -> tuple[Matrix, Matrix]:
    """Weights (labels, hidden) and biases."""
    arrays = network.output.arrays
    return arrays["weights"][:, : network.output.inputs], arrays["bias"][:, 0]


# ---- candidates of single rows --------------------------------------------------------------------------------------


def recall(network: Network, known: Matrix, queries: Matrix) -> None:
    """Prints the first table."""
    weights, bias = output(network)
    best = np.argsort(-(queries @ weights.T + bias), axis=1)[:, :TOP]
    ways: dict[str, Find] = {"largest bias": by_bias(bias)}
    for family, count in (("simhash", 16), ("simhash", 96), ("dwta", 96)):
        ways[f"{family}, {count} tables"] = by_hashing(network, queries, family, count)
    for cells in CELLS:
        ways[f"{cells:,} cells of output weights and bias"] = by_weight_cells(weights, bias, queries, cells)
        ways[f"{cells:,} cells of hidden vectors"] = by_hidden_cells(weights, bias, known, queries, cells)
    ways[f"{CELLS_OF_PRODUCT:,} cells, as training makes them"] = by_cells(network, queries)
    rows = []
    for name, find in ways.items():
        shares = []
        for share in SHARES:
            many = max(1, round(share * network.labels))
            shares.append(np.mean([np.isin(best[i], find(i, many)).mean() for i in range(len(queries))]))
        rows.append([name, *(f"{share:.1%}" for share in shares)])
    print(markdown_table(["candidates", *(f"{share:.2%} of the labels" for share in SHARES)], rows) + "\n", flush=True)


def by_bias(bias: Matrix) -> Find:
    """The labels with the largest bias, the same for all rows."""
    order = np.argsort(-bias)
    return lambda row, many: order[:many]


def by_hashing(network: Network, queries: Matrix, family: str, count: int) -> Find:
    """Neurons that share most buckets with the row."""
    index, padded_queries = tables(network, family, count), with_padding(queries)

    def find(row: int, many: int) -> Labels:
        return index.look_up(Dense(padded_queries[row : row + 1]), many, 0).lists.indices.astype(np.int64)

    return find


def tables(network: Network, family: str, count: int) -> LshIndex:
    """Hash tables of the output layer."""
    layer = network.output
    k, _, bits = automatic(network.labels, layer.inputs, family)
    index = LshIndex(network.labels, layer.inputs, family, HashParameters(k, count, bits), network.config, seed=0)
    index.rebuild(layer.codes)
    return index


def cells_of(network: Network, labels: int) -> Cells:
    """Cells of the last rows that the network was trained on."""
    assert network.recent is not None
    cells = Cells(network.output, min(labels, network.labels), network.collectives)
    cells.build(network.recent.rows)
    return cells


def by_cells(network: Network, queries: Matrix) -> Find:
    """Labels of the row's cell, as dslide makes cells."""
    cells = cells_of(network, round(max(SHARES) * network.labels))
    labels, list_of = cells.state["labels"], cells.candidates(Dense(with_padding(queries))).list_of
    return lambda row, many: labels[list_of[row], :many].astype(np.int64)


def with_padding(queries: Matrix) -> npt.NDArray[np.float32]:
    """Hidden vectors as layers have them."""
    made = aligned_zeros(len(queries), padded(queries.shape[1]))
    made[:, : queries.shape[1]] = queries
    return made


def by_weight_cells(weights: Matrix, bias: Matrix, queries: Matrix, cells: int) -> Find:
    """Neurons in the cells of output weights, bias as one more coordinate, whose centres have the largest products with
    the row."""
    vectors = np.c_[weights, bias]
    centres = k_means(vectors, cells)
    members = np.argsort(nearest(vectors, centres), kind="stable")
    begin = np.searchsorted(nearest(vectors, centres)[members], np.arange(cells + 1))
    order = np.argsort(-(queries @ centres[:, :-1].T + centres[:, -1]), axis=1)

    def find(row: int, many: int) -> Labels:
        found: list[Labels] = []
        while sum(map(len, found)) < many:
            cell = order[row, len(found)]
            found.append(members[begin[cell] : begin[cell + 1]])
        return np.concatenate(found)[:many]

    return find


def by_hidden_cells(weights: Matrix, bias: Matrix, known: Matrix, queries: Matrix, cells: int) -> Find:
    """Neurons with the largest logits for the centre of the row's cell of hidden vectors."""
    centres = k_means(known, cells)
    cell = nearest(queries, centres)
    many = round(max(SHARES) * len(weights))
    order = np.argsort(-(centres @ weights.T + bias), axis=1)[:, : many + 1]
    return lambda row, many: order[cell[row], :many]


def k_means(vectors: Matrix, cells: int) -> Matrix:
    """Centres after a few rounds from random vectors."""
    centres: Matrix = vectors[np.random.default_rng(0).permutation(len(vectors))[:cells]].copy()
    for _ in range(ROUNDS):
        cell = nearest(vectors, centres)
        counts = np.bincount(cell, minlength=cells)
        filled = counts > 0
        begins = np.concatenate([[0], np.cumsum(counts[filled])[:-1]])
        sums = np.add.reduceat(vectors[np.argsort(cell, kind="stable")], begins, axis=0)
        centres[filled] = sums / counts[filled, None]
    return centres


def nearest(vectors: Matrix, centres: Matrix) -> Labels:
    """The centre that is nearest to each vector."""
    half = (centres**2).sum(axis=1) / 2
    parts = [np.argmax(part @ centres.T - half, axis=1) for part in np.array_split(vectors, len(vectors) // 4096 + 1)]
    return np.concatenate(parts)


# ---- active sets of batches -----------------------------------------------------------------------------------------


def masses(network: Network, data: Dataset, batches: int, retrievers: dict[str, Retriever]) -> None:
    """Prints the second and the third table."""
    weights, bias = output(network)
    frequencies = data.label_frequencies()
    random = np.random.default_rng(0)
    caught: dict[tuple[str, int], list[float]] = {}
    errors: dict[tuple[str, int], list[float]] = {}
    for _ in range(batches):
        ids = random.choice(len(data), BATCH, replace=False)
        h = hidden_vectors(network, data.take(ids), BATCH)
        chances = probabilities(h @ weights.T + bias, network.config.loss)
        y = data.y.take(ids)
        chances[np.repeat(np.arange(BATCH), np.diff(y.indptr)), y.indices] = 0
        labels = np.unique(y.indices)
        rest = np.setdiff1d(np.arange(network.labels), labels)
        best = rest[np.argsort(-chances[:, rest].sum(axis=0))]
        for more in MORE:
            ways = [("uniform", None, rest[:0]), ("by frequency", frequencies, rest[:0])]
            for name, found in retrievers.items():
                hits = np.unique(found.look_up(Dense(with_padding(h)), HITS, 0).lists.indices)
                if len(hits := np.setdiff1d(hits, labels)) < more:
                    ways.append((f"hits of {name}, the others by frequency", frequencies, hits))
            for name, given, hits in ways:
                inclusion = inclusion_probabilities(given, network.labels, more - len(hits))
                inclusion[hits] = 1
                chosen = rest[random.random(len(rest)) < inclusion[rest]]
                active = np.union1d(labels, chosen)
                caught.setdefault((name, more), []).append(chances[:, active].sum() / chances.sum())
                variance = chances[:, rest] ** 2 @ ((1 - inclusion[rest]) / inclusion[rest])
                errors.setdefault((name, more), []).append(float((variance / chances.sum(axis=1) ** 2).mean()))
            known = {
                "largest bias": rest[np.argsort(-bias[rest])],
                "largest sums of probabilities (the best there is)": best,
            }
            for name, order in known.items():
                active = np.union1d(labels, order[:more])
                caught.setdefault((name, more), []).append(chances[:, active].sum() / chances.sum())
    heading = [f"{more:,} more" for more in MORE]
    names = list(dict.fromkeys(name for name, _ in caught))
    rows = [[name, *(shown(caught, name, more, "{:.1%}") for more in MORE)] for name in names]
    print(markdown_table(["mass caught: labels of the batch and", *heading], rows) + "\n", flush=True)
    names = list(dict.fromkeys(name for name, _ in errors))
    errors = {key: [float(np.sqrt(np.mean(each)))] for key, each in errors.items()}
    rows = [[name, *(shown(errors, name, more, "{:.2f}") for more in MORE)] for name in names]
    print(markdown_table(["relative standard error of sampled sums: negatives", *heading], rows) + "\n", flush=True)


def shown(measured: dict[tuple[str, int], list[float]], name: str, more: int, form: str) -> str:
    """A mean as text; empty where hits alone are more than all."""
    return form.format(np.mean(measured[name, more])) if (name, more) in measured else ""


# ---- cost -----------------------------------------------------------------------------------------------------------


def costs(network: Network, hidden: Matrix, retrievers: dict[str, Retriever]) -> None:
    """Prints the fourth table."""
    batches = [Dense(with_padding(hidden[begin : begin + BATCH])) for begin in range(0, len(hidden) - BATCH, BATCH)]
    rows = []
    for name, retriever in retrievers.items():
        _core.set_threads(1)
        start = time.perf_counter()
        for step, batch in enumerate(batches):
            retriever.look_up(batch, HITS, step)
        look_up = (time.perf_counter() - start) / (len(batches) * BATCH)
        seconds = []
        for threads in (1, 2):
            _core.set_threads(threads)
            start = time.perf_counter()
            rebuild(network, retriever)
            seconds.append(time.perf_counter() - start)
        lost = 1 - len(reachable(retriever)) / network.labels
        rows.append([name, f"{1e6 * look_up:.1f}", *(f"{each:.2f}" for each in seconds), f"{lost:.1%}"])
    heading = ["look-up", "microseconds a row, 1 thread", "rebuild, s, 1 thread", "2 threads", "labels not to be found"]
    print(markdown_table(heading, rows) + "\n", flush=True)


def rebuild(network: Network, retriever: Retriever) -> None:
    """As if every neuron had moved."""
    if isinstance(retriever, LshIndex):
        retriever.forget()
        retriever.rebuild(network.output.codes)
    else:
        assert isinstance(retriever, Cells)
        assert network.recent is not None
        retriever.build(network.recent.rows)


def reachable(retriever: Retriever) -> Labels:
    """The labels that some row may look up."""
    if isinstance(retriever, Cells):
        return np.unique(retriever.lists.indices)
    assert isinstance(retriever, LshIndex)
    codes, found = retriever.tables.codes, []
    for table in range(len(codes)):
        found += [retriever.tables.bucket(table, int(code)) for code in np.unique(codes[table])]
    return np.unique(np.concatenate(found))


def probabilities(logits: Matrix, loss: str) -> Matrix:
    """Of all labels, as the loss has them."""
    if loss == "sigmoid":
        sigmoids: Matrix = 1 / (1 + np.exp(-logits))
        return sigmoids
    chances: Matrix = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    return chances


if __name__ == "__main__":
    run_command(main)
