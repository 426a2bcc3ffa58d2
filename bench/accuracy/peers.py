"""A peer on rows of XMLRepository text: `PYTHON peers.py NAME ARGUMENTS` trains and prints what it predicts as JSON.

A program of its own, without dslide, so that peers can have an environment with the versions that they need. It prints
the seconds of training, the peak memory until its end, and the best labels of each test row. Reading is not timed.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix


def parabel(folder: str, trees: int, top: int, seed: int) -> dict[str, Any]:
    """Parabel by omikuji, with its default settings but the number of trees. It takes no seed."""
    import omikuji
    from omikuji import ffi, lib

    # `train_on_data` would read and train in one call.
    pool = omikuji._ThreadPoolHandle(0)  # a thread for each core
    rows = ffi.gc(lib.load_omikuji_data_set(f"{folder}/train.txt".encode(), pool.ptr), lib.free_omikuji_data_set)
    settings = omikuji.Model.default_hyper_param()
    settings.n_trees = trees
    start = time.perf_counter()
    model = omikuji.Model(lib.train_omikuji_model(rows, settings, pool.ptr), pool)
    seconds, peak = time.perf_counter() - start, peak_bytes()
    x, _ = read_rows(f"{folder}/test.txt")
    predicted = []
    for begin, end in pairwise(x.indptr):
        pairs = list(zip(x.indices[begin:end].tolist(), x.data[begin:end].tolist(), strict=True))
        predicted.append([label for label, _ in model.predict(pairs, top_k=top)])
    return {"seconds": seconds, "peak_bytes": peak, "predicted": predicted}


def pecos(folder: str, top: int, seed: int) -> dict[str, Any]:
    """PECOS's XR-Linear with its default settings: labels are clustered by their rows, then ranked down the tree."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    x, y = read_rows(f"{folder}/train.txt")
    start = time.perf_counter()
    tree = Indexer.gen(LabelEmbeddingFactory.create(y, x, method="pifa"), seed=seed)
    model = XLinearModel.train(x, y, C=tree)
    seconds, peak = time.perf_counter() - start, peak_bytes()
    found = model.predict(read_rows(f"{folder}/test.txt")[0], only_topk=top).tocsr()
    predicted = []
    for begin, end in pairwise(found.indptr):
        order = np.argsort(-found.data[begin:end], kind="stable")
        predicted.append(found.indices[begin:end][order].tolist())
    return {"seconds": seconds, "peak_bytes": peak, "predicted": predicted}


def read_rows(path: str) -> tuple[csr_matrix, csr_matrix]:
    """Features and labels of a file that counts from 0."""
    labels, features, values = array("i"), array("i"), array("f")
    label_ends, feature_ends = array("q", [0]), array("q", [0])
    with open(path, encoding="ascii") as file:
        rows, columns, label_count = map(int, file.readline().split())
        for line in file:
            first, *pairs = line.rstrip("\n").split(" ")
            labels.extend(int(label) for label in first.split(",") if label)
            for pair in pairs:
                feature, _, value = pair.partition(":")
                features.append(int(feature))
                values.append(float(value))
            label_ends.append(len(labels))
            feature_ends.append(len(features))
    x = csr_matrix((_numpy(values), _numpy(features), _numpy(feature_ends)), (rows, columns))
    return x, csr_matrix((np.ones(len(labels), np.float32), _numpy(labels), _numpy(label_ends)), (rows, label_count))


def _numpy(numbers: array[Any]) -> Any:
    return np.frombuffer(numbers, numbers.typecode) if numbers else np.zeros(0, numbers.typecode)


def peak_bytes() -> int:
    """The maximum of resident memory so far, of this program alone."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    function = {"parabel": parabel, "pecos": pecos}[sys.argv[1]]
    print(json.dumps(function(**json.loads(sys.argv[2]))))
