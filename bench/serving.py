"""What predictions cost: one row, batches, and requests to a server; accuracy beside.

    python -m bench.serving RUN TEST [--small MODEL ...]

RUN is a trained run or model, TEST its test data as sparse rows. `--small`: exports of it, measured too. Each system
runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib.measuring import run_command
from bench.lib.tables import markdown_table

TOP = 5
ONE_ROW, BATCH, SERVER_SECONDS = 500, 2000, 3.0
CLIENTS = (1, 16)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--small", type=Path, nargs="+", default=[], help="exported models, measured too")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_model(options.run, options.test)))
        return 0
    test = str(options.test)
    systems = {
        f"dslide, {path.name}": [sys.executable, "-m", "bench.serving", "--measure", str(path), test]
        for path in (options.run, *options.small)
    }
    rows = []
    for name, command in systems.items():
        found = json.loads(
            subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()[-1]
        )
        rows.append([name, f"{found['p1']:.3f} / {found['p5']:.3f}", f"{found['median']:.2f} / {found['p99']:.2f}",
                     f"{found['rows']:,.0f}", *(found["server"] or ["", ""])])  # fmt: skip
    clients = [f"server, {count} client{'s' * (count > 1)}: requests/s, median / p99 in ms" for count in CLIENTS]
    print(markdown_table(["system", "P@1 / P@5", "one row, median / p99 in ms", "batches, rows/s", *clients], rows))
    return 0


def times(predict: Callable[[int], Any], rows: int) -> dict[str, float]:
    """Median and 99th percentile of single rows, in milliseconds."""
    taken = []
    for row in range(rows):
        start = time.perf_counter()
        predict(row)
        taken.append(1000 * (time.perf_counter() - start))
    taken = taken[len(taken) // 10 :]  # without the first, which warm up
    return {"median": float(np.median(taken)), "p99": float(np.quantile(taken, 0.99))}


def precisions(ids: Any, truth: list[set[int]]) -> dict[str, float]:
    hits = np.array([[label in true for label in labels] for labels, true in zip(ids, truth, strict=True)])
    return {"p1": float(hits[:, 0].mean()), "p5": float(hits.mean())}


def measure_model(run: Path, test: Path) -> dict[str, Any]:
    """One row at a time, batches, and requests of a row each, whose features are sent by name or number."""
    from dslide.training.inference import open_model

    model = open_model(run)
    data, network = model.read(test), model.network
    x, y = data.rows(0, len(data))
    found = times(lambda row: network.predict_topk(x.part(row, row + 1), TOP), min(ONE_ROW, len(x)))
    many = x.part(0, min(BATCH, len(x)))
    start = time.perf_counter()
    network.predict_topk(many, TOP)
    found["rows"] = len(many) / (time.perf_counter() - start)
    ids = network.predict_topk(x, TOP)[0]
    truth = [set(y.indices[y.indptr[row] : y.indptr[row + 1]].tolist()) for row in range(len(y))]
    names, base = model.saved.feature_names or (model.saved.vectorizer or {}).get("words"), model.saved.base
    bodies = []
    for row in range(min(ONE_ROW, len(x))):
        one = x.part(row, row + 1)
        keys = [names[i] if names else str(i + base) for i in one.indices.tolist()]
        bodies.append(json.dumps({"row": dict(zip(keys, one.values.tolist(), strict=True))}).encode())
    return found | precisions(ids, truth) | {"server": [requests(run, bodies, count) for count in CLIENTS]}


def requests(run: Path, bodies: list[bytes], clients: int) -> str:
    """Requests to a server by so many clients at once."""
    import http.client

    with server(run) as port:
        taken: list[float] = []
        end = time.perf_counter() + SERVER_SECONDS

        def ask(number: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            while time.perf_counter() < end:
                number = (number + 1) % len(bodies)
                start = time.perf_counter()
                connection.request("POST", "/predict", bodies[number], {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
                taken.append(1000 * (time.perf_counter() - start))

        threads = [threading.Thread(target=ask, args=(37 * number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return f"{len(taken) / SERVER_SECONDS:,.0f}, {np.median(taken):.1f} / {np.quantile(taken, 0.99):.1f}"


@contextmanager
def server(run: Path) -> Iterator[int]:
    """A server with one worker; its port."""
    command = [sys.executable, "-m", "dslide.cli", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().rsplit(":", 1)[1])
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    run_command(main)
