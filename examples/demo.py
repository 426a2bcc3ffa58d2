"""Makes a data set with 200,000 labels, trains on it with the command line, first in one process and then split over
two ranks, and shows some predictions by name.

python examples/demo.py FOLDER      (FOLDER must not exist yet)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import dslide
from dslide.data import read_names

ROWS_SHOWN = 5
WORDS_SHOWN = 8


def run(*arguments: str) -> None:
    """Runs a dslide command and shows it."""
    print(f"\n$ dslide {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "dslide.cli", *arguments], check=True)


def main(folder: str) -> None:
    data, trained = f"{folder}/data", f"{folder}/run"
    run("synth", data, "--rows", "30000", "--features", "50000", "--labels", "200000", "--test-rows", "2000")
    run("train", f"{data}/train.txt", "--test", f"{data}/test.txt", "--label-names", f"{data}/labels.txt",
        "--out", trained, "--test-every", "1", "--test-rows", "500")  # fmt: skip
    run("train", f"{data}/train.txt", "--test", f"{data}/test.txt", "--out", f"{folder}/two-ranks", "--epochs", "2",
        "--ranks", "2")  # fmt: skip

    model = dslide.open_model(trained)
    test = dslide.load(f"{data}/test.txt")
    words = read_names(Path(data) / "features.txt")
    names = model.saved.label_names or []
    ids, _ = model.network.predict_topk(test.x.part(0, ROWS_SHOWN), 5)
    print(f"\nPredictions for {ROWS_SHOWN} test rows (* = a true label of the row):")
    for row in range(ROWS_SHOWN):
        features = slice(test.x.indptr[row], test.x.indptr[row + 1])
        heaviest = np.argsort(-test.x.values[features])[:WORDS_SHOWN]
        true = set(test.y.indices[test.y.indptr[row] : test.y.indptr[row + 1]].tolist())
        print(f"  words: {', '.join(words[i] for i in test.x.indices[features][heaviest])}, ...")
        print(f"  labels: {', '.join(names[i] + '*' * (i in true) for i in ids[row].tolist())}\n")


if __name__ == "__main__":
    main(sys.argv[1])
