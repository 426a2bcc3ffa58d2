"""What predictions cost: one row, batches, several threads, and requests to a server; accuracy beside.

    python -m bench.serving RUN TEST [--small MODEL ...] [--peers-python PYTHON --peers-data FOLDER] [--texts FILE]

RUN is a trained run or model, TEST its test data as sparse rows. `--small`: exports of it, measured too. Peers are
trained on `train.txt` of a folder of XMLRepository text, and predict its `test.txt`, which is TEST. `--texts`, a file
with a text per line for a model of text: load tests of servers by wrk, and nothing else. Each system runs in a process
of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.lib.measuring import run_command
from bench.lib.tables import markdown_table
from bench.serving.peers import BATCHES, PEERS, batch_rates, precisions, times
from bench.serving.server import load_tests

TOP = 5
ONE_ROW, BATCH, CALLER_SECONDS = 500, 2000, 2.0
CALLERS = (1, 2, 4)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--small", type=Path, nargs="+", default=[], help="exported models, measured too")
    parser.add_argument("--peers-python", help="Python that has omikuji and libpecos")
    parser.add_argument("--peers-data", type=Path, help="folder with train.txt and test.txt for peers")
    parser.add_argument("--texts", type=Path, help="file with a text per line: load tests of a server instead")
    parser.add_argument("--measure", choices=("exact", "approximate"), help=argparse.SUPPRESS)  # in its own process
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_model(options.run, options.test, options.measure == "approximate")))
        return 0
    if options.texts:
        print(load_tests([options.run, *options.small], options.texts.read_text("utf-8").splitlines()))
        return 0
    test = str(options.test)
    systems = {
        f"dslide, {path.name}, {kind}": [
            sys.executable, "-m", "bench.serving", "--measure", kind, str(path), test
        ]
        for path in (options.run, *options.small) for kind in ("exact", "approximate")
    }  # fmt: skip
    if options.peers_python:
        for name in PEERS:
            systems[name] = [options.peers_python, "-m", "bench.serving.peers", name, str(options.peers_data), str(TOP)]
    rows = []
    for name, command in systems.items():
        found = json.loads(
            subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()[-1]
        )
        rates = f"{found['rows']:,.0f} ({found['least']:,.0f} to {found['most']:,.0f})"
        one_row = f"{found['median']:.2f} / {found['p99']:.2f}"
        accuracy = f"{found['p1']:.4f} / {found['p5']:.4f}"
        rows.append([name, accuracy, one_row, rates, found.get("callers", ""), found.get("first", "")])
    heads = [
        "system", "P@1 / P@5", "one row, median / p99 in ms", f"batches, rows/s, median of {BATCHES}",
        f"rows/s of {', '.join(map(str, CALLERS))} threads that predict a row each", "first answer, s",
    ]  # fmt: skip
    print(markdown_table(heads, rows))
    return 0


def measure_model(run: Path, test: Path, approximate: bool) -> dict[str, Any]:
    """One row at a time, batches, and several threads with a row each."""
    from dslide.training.inference import open_model

    start = time.perf_counter()
    model = open_model(run)
    opened = time.perf_counter() - start
    data, network = model.read(test), model.network
    x, y = data.rows(0, len(data))
    predict = network.predict_topk_approximate if approximate else network.predict_topk
    start = time.perf_counter()
    predict(x.part(0, 1), TOP)
    first = opened + time.perf_counter() - start
    many = x.part(0, min(BATCH, len(x)))
    found: dict[str, Any] = batch_rates(lambda: predict(many, TOP), len(many))
    found |= times(lambda row: predict(x.part(row, row + 1), TOP), min(ONE_ROW, len(x)))
    callers = ", ".join(
        f"{in_threads(lambda row: predict(x.part(row, row + 1), TOP), n, len(x)):,.0f}" for n in CALLERS
    )
    truth = [set(y.indices[y.indptr[row] : y.indptr[row + 1]].tolist()) for row in range(len(y))]
    ids = predict(x, TOP)[0]
    return found | precisions(ids, truth) | {"callers": callers, "first": f"{first:.2f}"}


def in_threads(predict: Callable[[int], Any], threads: int, rows: int) -> float:
    """Rows a second of so many threads that predict one row after the other."""
    done, end = [0] * threads, time.perf_counter() + CALLER_SECONDS

    def work(number: int) -> None:
        while time.perf_counter() < end:
            predict((37 * number + done[number]) % rows)
            done[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / CALLER_SECONDS


if __name__ == "__main__":
    run_command(main)
