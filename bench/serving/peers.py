"""What predictions of peers cost: `PYTHON -m bench.serving.peers NAME FOLDER TOP` trains on a folder's `train.txt` and
prints, as JSON, what predictions of `test.txt` take. Without dslide, so that peers can have their own environment.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from bench.accuracy.peers import read_rows

ONE_ROW, BATCH, BATCHES = 500, 2000, 5
TREES = 3


def times(predict: Callable[[int], Any], rows: int) -> dict[str, float]:
    """Median and 99th percentile of single rows, in milliseconds."""
    taken = []
    for row in range(rows):
        start = time.perf_counter()
        predict(row)
        taken.append(1000 * (time.perf_counter() - start))
    taken = taken[len(taken) // 10 :]  # without the first, which warm up
    return {"median": float(np.median(taken)), "p99": float(np.quantile(taken, 0.99))}


def batch_rates(predict: Callable[[], Any], rows: int) -> dict[str, float]:
    """Rows a second of some batches of so many rows, after one that warms up: median, least and most."""
    predict()
    found = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        predict()
        found.append(rows / (time.perf_counter() - start))
    return {"rows": float(np.median(found)), "least": min(found), "most": max(found)}


def precisions(ids: Any, truth: Sequence[set[int]]) -> dict[str, float]:
    """P@1 and P@k of the best k labels of rows."""
    hits = [[label in true for label in labels] for labels, true in zip(ids, truth, strict=True)]
    return {"p1": float(np.mean([row[:1] == [True] for row in hits])), "p5": float(np.mean(np.array(hits)))}


def parabel(folder: str, top: int) -> dict[str, Any]:
    """Parabel by omikuji, which predicts one row at a time."""
    import omikuji

    settings = omikuji.Model.default_hyper_param()
    settings.n_trees = TREES
    model = omikuji.Model.train_on_data(f"{folder}/train.txt", settings)
    x, y = read_rows(f"{folder}/test.txt")
    rows = [
        list(zip(x.indices[begin:end].tolist(), x.data[begin:end].tolist(), strict=True))
        for begin, end in pairwise(x.indptr)
    ]
    many = rows[:BATCH]
    found: dict[str, Any] = batch_rates(lambda: [model.predict(row, top_k=top) for row in many], len(many))
    found |= times(lambda row: model.predict(rows[row], top_k=top), min(ONE_ROW, len(rows)))
    predicted = [[label for label, _ in model.predict(row, top_k=top)] for row in rows]
    return found | precisions([each + [-1] * (top - len(each)) for each in predicted], truth_of(y))


def pecos(folder: str, top: int) -> dict[str, Any]:
    """PECOS's XR-Linear, opened for prediction only, which is its fast path."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    x, y = read_rows(f"{folder}/train.txt")
    trained = XLinearModel.train(x, y, C=Indexer.gen(LabelEmbeddingFactory.create(y, x, method="pifa")))
    with tempfile.TemporaryDirectory() as place:
        trained.save(place)
        model = XLinearModel.load(place, is_predict_only=True)
        x, y = read_rows(f"{folder}/test.txt")
        x.sort_indices()
        ones = [x[row] for row in range(min(ONE_ROW, x.shape[0]))]
        many = x[:BATCH]
        found: dict[str, Any] = batch_rates(lambda: model.predict(many, only_topk=top), many.shape[0])
        found |= times(lambda row: model.predict(ones[row], only_topk=top), len(ones))
        scores = model.predict(x, only_topk=top).tocsr()
    predicted = []
    for begin, end in pairwise(scores.indptr):
        best = scores.indices[begin:end][np.argsort(-scores.data[begin:end], kind="stable")].tolist()
        predicted.append(best + [-1] * (top - len(best)))
    return found | precisions(predicted, truth_of(y))


def truth_of(y: Any) -> list[set[int]]:
    """The labels of each row."""
    return [set(y.indices[begin:end].tolist()) for begin, end in pairwise(y.indptr)]


PEERS = {"Parabel by omikuji": parabel, "XR-Linear of PECOS": pecos}

if __name__ == "__main__":
    print(json.dumps(PEERS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
