"""What scaling and predictions measure: training on a lab, the exchanges of a step alone, and one rank alone. Each
function is called in a fresh process and returns its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dslide import Config, netlab, phases
from dslide.calibration import time_alone, trial_parameters
from dslide.data import SparseRows
from dslide.steptime import Link, node_step
from dslide.traffic import bytes_on_wire, messages_per_step
from dslide.trial_rows import TrialRows, rows_of

from .. import network
from ..runs import ROOT
from ..workload import BATCH, NETWORK, read_data

EXCHANGE_LIMIT = 120  # seconds for a job of exchanges alone


@contextmanager
def lab(nodes: int, rate: str) -> Iterator[str]:
    """A lab of its own."""
    name = f"scaling{os.getpid()}"
    netlab.up(nodes, rate, name)
    try:
        yield name
    finally:
        netlab.down(name)


def network_config(threads: int = 1) -> Config:
    """The options of all runs."""
    return Config(**NETWORK, batch_size=BATCH, threads=threads)


def trained(data: str, nodes: int, rate: str, threads: int, epochs: int, labels: int, seed: int) -> dict[str, float]:
    """Training on a lab: speed after the first epoch, bytes on the interfaces, memory."""
    config = network_config(threads)
    with lab(nodes, rate) as name:
        figures = network.run(Path(data) / "train.txt", ["--threads", str(threads)], name, epochs)
    return {
        "samples_per_second": figures["samples_per_second"],
        "kilobytes": figures["bytes_on_wire"] / 1e3 if nodes > 1 else 0.0,  # alone it talks to the launcher only
        "formula_kilobytes": bytes_on_wire(config, labels, nodes) / 1e3,
        "megabytes": figures["peak_rss_bytes"] / 1e6,
        "planned_megabytes": figures["planned_bytes"] / 1e6,
        "waiting": figures["waiting"],
    }


def exchanged(nodes: int, rate: str, labels: int, seconds: float, seed: int) -> dict[str, float]:
    """The exchanges of a step without what is computed between them, and what the model makes of the link's rate."""
    with tempfile.TemporaryDirectory() as folder, lab(nodes, rate) as name:
        file = Path(folder) / "seconds.json"
        command = [sys.executable, "-m", "bench.cluster.exchanges", str(seconds), str(file)]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        result = netlab.run(
            command, name=name, limit=EXCHANGE_LIMIT, environment={"PYTHONPATH": path}, stdout=subprocess.DEVNULL
        )
        if result.code != 0:
            raise SystemExit(f"the exchanges failed with code {result.code}")
        found = json.loads(file.read_text())
    step = node_step(network_config(), labels, nodes, 0.0, Link(netlab.parse_rate(rate), 0.0))
    return {
        "milliseconds": 1e3 * found["seconds"],
        "busy_milliseconds": 1e3 * found["busy"],
        "messages": messages_per_step(network_config(), labels, nodes),
        "messages_milliseconds": 1e3 * step.messages,
        "wire_milliseconds": 1e3 * step.wire,
    }


def alone(data: str, nodes: int, threads: int, seconds: float, grows: bool, seed: int) -> dict[str, float]:
    """One rank of so many without the others, on as many cores as it has threads; `grows`: with as many times the
    labels as there are ranks. Beside it, the same with layers cut down as `dslide plan` has them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    config = network_config(threads)
    rows = rows_of(read_data(data), BATCH, seed)
    rows = grown(rows, nodes) if grows else rows
    whole = time_alone(config, rows, nodes, False, seconds, most_parameters=sys.maxsize)
    cut = time_alone(config, rows, nodes, False, seconds, trial_parameters())
    return {
        "milliseconds": 1e3 * whole.compute,
        "packing_milliseconds": 1e3 * whole.phases.get(phases.PACKING, 0.0),
        "cut_milliseconds": 1e3 * cut.compute,
        "renewal_seconds": whole.renewal,
        "active": whole.active,
    }


def grown(rows: TrialRows, times: int) -> TrialRows:
    """The same rows with so many times the labels, dealt out to as many ranks as before."""
    ids = rows.y.indices.astype(np.int64)
    y = SparseRows(rows.y.indptr, (ids * times + ids % times).astype(np.int32), rows.y.values, rows.labels * times)
    return TrialRows(rows.x, y, rows.rows)
