"""The share of memory bandwidth that exact prediction of single rows reads weights with: python -m
bench.serving.bandwidth RUN TEST.

Beside it what this machine reads and copies when nothing else is done: the best of several trials, all cores.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.lib.measuring import run_command
from bench.lib.tables import markdown_table
from bench.serving.peers import times
from dslide import _core
from dslide.training.inference import open_model
from dslide.util.threads import available_cores

ROWS, TRIALS, NUMBERS = 100, 7, 1 << 27  # numbers: float32 that each core reads


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.serving.bandwidth")
    parser.add_argument("run", type=Path)
    parser.add_argument("test", type=Path)
    options = parser.parse_args()
    model = open_model(options.run)
    network, x = model.network, model.read(options.test).rows(0, ROWS)[0]
    weights = network.output.arrays["weights"]
    for row in range(5):
        network.predict_topk(x.part(row, row + 1), 5)
    taken = times(lambda row: network.predict_topk(x.part(row, row + 1), 5), len(x))
    reads, copies = read_speed(available_cores()), _core.measure_speeds(available_cores())[1]
    rate = weights.nbytes / taken["median"] / 1e6
    rows = [
        ["weights", f"{weights.nbytes / 1e6:,.0f} MB of {weights.dtype}"],
        ["exact prediction of a row, median / p99", f"{taken['median']:.2f} / {taken['p99']:.2f} ms"],
        ["that is", f"{rate:.1f} GB/s, {rate / reads:.0%} of what is read"],
        ["reading alone", f"{reads:.1f} GB/s"],
        ["copying alone, read and written", f"{copies:.1f} GB/s"],
    ]
    print(markdown_table(["", str(options.run.name)], rows))
    return 0


def read_speed(cores: int) -> float:
    """10^9 bytes a second that so many threads read together."""
    arrays = [np.ones(NUMBERS, np.float32) for _ in range(cores)]

    def trial() -> None:
        in_threads([lambda array=array: np.dot(array, array) for array in arrays])

    best = float("inf")
    for _ in range(TRIALS):
        start = time.perf_counter()
        trial()
        best = min(best, time.perf_counter() - start)
    return sum(array.nbytes for array in arrays) / best / 1e9


def in_threads(work: list[Callable[[], object]]) -> None:
    """Runs each in a thread of its own."""
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    run_command(main)
