"""omikuji on rows of XMLRepository text: `PYTHON serving_peer.py MODEL TRAIN TEST TOP SINGLE BATCH` trains Parabel with
its defaults on TRAIN, unless the folder MODEL has it already, and prints what its predictions cost as JSON.

A program of its own, without dslide and numpy, so that omikuji can have an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(folder: str, train: str, test: str, top: int, single: int, batch: int) -> None:
    import omikuji

    if not Path(folder).exists():
        trained = omikuji.Model.train_on_data(train)
        Path(folder).mkdir(parents=True)
        trained.save(folder)
    model = omikuji.Model.load(folder)
    rows, truth = [], []
    for line in Path(test).read_text().splitlines()[1:]:
        labels, _, features = line.partition(" ")
        truth.append({int(label) for label in labels.split(",") if label})
        rows.append([(int(index), float(value)) for index, value in (each.split(":") for each in features.split())])
    taken, found = [], []
    for row in rows:
        start = time.perf_counter()
        best = model.predict(row, top_k=top)
        taken.append(1000 * (time.perf_counter() - start))
        found.append([label for label, _ in best])
    first, hits = 0, 0
    for best_labels, true in zip(found, truth, strict=True):
        first += best_labels[0] in true
        hits += len(true.intersection(best_labels))
    singles = sorted(taken[single // 10 : single])  # without the first, which warm up
    print(json.dumps({
        "median": singles[len(singles) // 2], "p99": singles[len(singles) * 99 // 100],
        "rows": 1000 * batch / sum(taken[:batch]), "p1": first / len(rows), "p5": hits / (top * len(rows)),
        "server": None,
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
