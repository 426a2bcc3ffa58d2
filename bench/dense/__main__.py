"""Accuracy on dense rows with defaults, beside simple methods:

    python -m bench.dense [SET or FOLDER ...] [--threads 1] [--methods METHOD,...]

Sets are made here; without any, all of them. A folder has train.npy, train.labels.npz, test.npy and test.labels.npz, as
`python -m bench.dense.embeddings` writes them. `--text TRAIN TEST` adds rows of 256 numbers made from sparse rows in
files, by truncated SVD.

Each method runs in a process of its own. Prints P@1 / P@3 / P@5 on test rows, seconds of training and prediction
together, and the peak of the process's memory. Methods: nearest centroid by cosine and by distance; scikit-learn's
linear discriminant (one label a row, up to 500 labels); neighbours with FAISS (`pip install faiss-cpu`); one-vs-rest
logistic regression at three strengths, solved for many labels at a time, and beside it how long scikit-learn's own
takes, estimated from 30 labels; dslide.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench.dense import peers
from bench.dense.sets import SETS, Rows, reduced
from bench.lib.tables import markdown_table
from dslide import Callback, SlideClassifier, ValidationInfo

COSTS = (1, 10, 100)  # of logistic regressions
MOST_CLASSES = 500  # of scikit-learn's discriminant, which takes minutes for thousands
METHODS = ("cosine", "distance", "discriminant", "faiss", *(f"ovr-{cost}" for cost in COSTS), "dslide")
NAMES = {
    "cosine": "nearest centroid by cosine",
    "distance": "nearest centroid by distance",
    "discriminant": "scikit-learn's LinearDiscriminantAnalysis",
    "faiss": "FAISS neighbours",
    **{f"ovr-{cost}": f"one-vs-rest logistic regression, C = {cost}" for cost in COSTS},
    "dslide": "dslide, defaults",
}
LIMIT = 1800  # seconds of a method


class Start(Callback):
    """When training began, and what held-out rows said."""

    def __init__(self) -> None:
        self.scores: list[str] = []

    def on_start(self, trainer: Any, total_steps: int) -> None:
        self.began = time.perf_counter()

    def on_validation(self, trainer: Any, info: ValidationInfo) -> None:
        self.scores.append(f"{info.metrics[info.metric]:.4f}")


def run(method: str, folder: Path, threads: int) -> dict[str, Any]:
    """One method on the rows of a folder."""
    rows = Rows.read(folder)
    begin, about = time.perf_counter(), ""
    if method == "dslide":
        start = Start()
        model = SlideClassifier(threads=threads).fit(rows.x, rows.y, callbacks=[start])
        about = f"{start.began - begin:.1f} s before the first step; nDCG@5 by epoch {' '.join(start.scores)}"
        ids = model.predict_topk(rows.new, min(max(peers.KS), rows.y.shape[1]))[0]
    elif method == "faiss":
        ids, about = peers.neighbours(rows, threads)
    elif method == "discriminant":
        ids = peers.discriminant(rows)
    elif method.startswith("ovr-"):
        ids, about = peers.one_vs_rest(rows, float(method[4:]))
    else:
        ids = peers.centroids(rows, method == "cosine")
    seconds = time.perf_counter() - begin
    found = {"p": peers.precisions(ids, rows.true).tolist(), "seconds": seconds, "about": about}
    found["bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if method.startswith("ovr-"):
        own, difference = peers.scikit_one_vs_rest(rows, float(method[4:]))
        found["about"] = f"scikit-learn: about {own:.0f} s; scores differ by at most {difference:.2g}"
    return found


def run_apart(method: str, folder: Path, threads: int) -> dict[str, Any]:
    """The same in a process of its own."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    command = [sys.executable, "-m", "bench.dense", str(folder), "--only", method, "--threads", str(threads)]
    made = subprocess.run(
        command, env=os.environ | dict.fromkeys(names, str(threads)), stdout=subprocess.PIPE, timeout=LIMIT, check=True
    )
    found: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return found


def fits(method: str, rows: Rows) -> bool:
    if method == "discriminant":
        return bool((np.diff(rows.y.indptr) == 1).all()) and rows.y.shape[1] <= MOST_CLASSES
    return method != "faiss" or find_spec("faiss") is not None


def measure(name: str, rows: Rows, folder: Path, methods: list[str], threads: int) -> None:
    shape = f"{len(rows.x):,} rows of {rows.x.shape[1]} features, {rows.y.shape[1]:,} labels"
    print(f"\n{name}: {shape}, {rows.y.nnz / len(rows.x):.1f} a row\n", flush=True)
    print(markdown_table(["", "P@1 / P@3 / P@5", "seconds", "MB", ""], []), flush=True)
    for method in methods:
        if not fits(method, rows):
            continue
        found = run_apart(method, folder, threads)
        precision = " / ".join(f"{p:.3f}" for p in found["p"])
        cells = [NAMES[method], precision, f"{found['seconds']:.1f}", f"{found['bytes'] / 2**20:.0f}", found["about"]]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.dense", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", metavar="SET or FOLDER", help=f"sets: {', '.join(SETS)}")
    parser.add_argument("--text", nargs=2, action="append", default=[], metavar=("TRAIN", "TEST"))
    parser.add_argument("--methods", default=",".join(METHODS), help=f"default: {','.join(METHODS)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help=argparse.SUPPRESS)  # the method that this process is for
    given = parser.parse_args()
    if given.only:
        print(json.dumps(run(given.only, Path(given.sets[0]), given.threads)))
        return
    methods = given.methods.split(",")
    if unknown := [name for name in methods if name not in METHODS]:
        parser.error(f"--methods: no method {unknown[0]}; there are {', '.join(METHODS)}")
    if missing := [name for name in given.sets if name not in SETS and not (Path(name) / "train.npy").is_file()]:
        parser.error(f"{missing[0]}: neither a set ({', '.join(SETS)}) nor a folder with train.npy")
    for name in given.sets or ([] if given.text else SETS):
        if name not in SETS:
            measure(name, Rows.read(Path(name)), Path(name), methods, given.threads)
            continue
        made(name, SETS[name](), methods, given.threads)
    for train, test in given.text:
        made(train, reduced(train, test), methods, given.threads)


def made(name: str, rows: Rows, methods: list[str], threads: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows.write(Path(folder))
        measure(name, rows, Path(folder), methods, threads)


if __name__ == "__main__":
    main()
