"""What cells of hidden vectors find without a label prior's help: python -m bench.serving.cells RUN TEST.

The share of test rows' five largest logits, without label prior, linear classifiers and calibration, that are among the
labels of their cells, and what a row takes, one after the other on one thread. `bench.serving.faiss_index` measures
indexes of FAISS on the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from bench.lib.measuring import run_command
from bench.serving.peers import times
from dslide import _core
from dslide.model.activations import Dense
from dslide.model.cells import Cells
from dslide.model.prediction import last_hidden
from dslide.training.inference import open_model

TOP, ROWS = 5, 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.serving.cells")
    parser.add_argument("run", type=Path)
    parser.add_argument("test", type=Path)
    options = parser.parse_args()
    model = open_model(options.run, threads=1)
    network, x = model.network, model.read(options.test).rows(0, ROWS)[0]
    h, index, layer = last_hidden(network, x), network.prediction_index(), network.output.native
    if not isinstance(index, Cells) or not isinstance(h, Dense):
        print("the model scores all labels")
        return 0
    best, found = ((np.empty((len(x), TOP), np.int32), np.empty((len(x), TOP), np.float32)) for _ in range(2))
    layer.topk(h.values, *best)
    lists = index.lists

    def look_up(row: int) -> None:
        one = Dense(h.values[row : row + 1])
        cells = index.candidates(one).list_of
        own = found[0][row : row + 1], found[1][row : row + 1]
        _core.topk_of_cells(layer, one.values, lists.indptr, lists.indices, cells, *own)

    taken = times(look_up, len(x))
    share = np.mean([np.isin(right, mine).mean() for right, mine in zip(best[0], found[0], strict=True)])
    labels = len(lists.indices) / lists.rows
    print(f"{labels:.0f} labels of a cell: {share:.1%} found, {taken['median']:.3f} ms a row")
    return 0


if __name__ == "__main__":
    run_command(main)
