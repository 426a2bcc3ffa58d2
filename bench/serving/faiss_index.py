"""Inner-product indexes of FAISS over output vectors, as something to compare cells of hidden vectors with, for which
there is `python -m bench.serving.cells`.

    PYTHON -m bench.serving.faiss_index ARRAYS [--rows N]

ARRAYS is what `dslide export RUN ARRAYS --arrays --rows DATA` writes; PYTHON has faiss-cpu, and needs no dslide. Items
are (weights, bias), queries (hidden vector, 1). SQ8 is a scan of all items in 8 bits. Prints, for some numbers of lists
that are probed, the share of each row's five largest logits that is found among the best 50, which float logits would
rank again, and what a row takes, one after the other on one thread.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib.tables import markdown_table

TOP, PROBES = 5, (1, 4, 16, 64)


def main() -> None:
    import faiss

    parser = argparse.ArgumentParser(prog="python -m bench.serving.faiss_index")
    parser.add_argument("arrays", type=Path)
    parser.add_argument("--rows", type=int, default=500)
    options = parser.parse_args()
    vectors, biases, hidden = (np.load(options.arrays / f"{name}.npy") for name in ("vectors", "biases", "hidden"))
    hidden = hidden[: options.rows]
    items = np.ascontiguousarray(np.column_stack([vectors, biases]), np.float32)
    queries = np.ascontiguousarray(np.column_stack([hidden, np.ones(len(hidden))]), np.float32)
    best = np.array([np.argpartition(-items @ query, TOP)[:TOP] for query in queries])
    lists = int(4 * np.sqrt(len(items)))
    faiss.omp_set_num_threads(2)
    rows = []
    for kind in ("SQ8", f"IVF{lists},SQ8", f"IVF{lists},PQ{-(-items.shape[1] // 4)}x4fs"):
        padded = np.pad(items, ((0, 0), (0, -items.shape[1] % 4)))
        index = faiss.index_factory(padded.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        start = time.perf_counter()
        index.train(padded)
        index.add(padded)
        made = time.perf_counter() - start
        asked = np.pad(queries, ((0, 0), (0, -items.shape[1] % 4)))
        faiss.omp_set_num_threads(1)
        for probes in PROBES if kind.startswith("IVF") else (0,):
            if probes:
                faiss.extract_index_ivf(index).nprobe = probes
            rows.append([f"{kind}, {made:.1f} s", str(probes or "all"), *_measured(index, asked, best)])
        faiss.omp_set_num_threads(2)
    print(markdown_table(["index, and the time to make it", "probes", "found", "one row, ms"], rows))


def _measured(index: Any, queries: Any, best: Any) -> tuple[str, str]:
    """The share of the best labels among 50 that are found, and milliseconds of a row."""
    taken, found = [], []
    for query, right in zip(queries, best, strict=True):
        start = time.perf_counter()
        ids = index.search(query[None], 50)[1][0]
        taken.append(1000 * (time.perf_counter() - start))
        found.append(np.isin(right, ids).mean())
    return f"{np.mean(found):.1%}", f"{np.median(taken):.3f}"


if __name__ == "__main__":
    main()
