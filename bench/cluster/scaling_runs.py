"""Measurements of the scaling experiment besides training: the exchanges of a step alone, and one rank alone. Each
function is called in a fresh process and returns its results."""

from __future__ import annotations

import os
import sys

import numpy as np

from bench.cluster.jobs import run_job
from bench.cluster.labs import lab, network_config
from bench.lib.workload import BATCH, read_data
from dslide import netlab
from dslide.data import SparseRows
from dslide.planner.calibration import time_alone, trial_parameters
from dslide.planner.step_time import NetworkSpeed, node_step
from dslide.planner.traffic import messages_per_step
from dslide.planner.trial_rows import TrialRows, rows_of
from dslide.training import phases

EXCHANGE_LIMIT = 120  # seconds for a job of exchanges alone


def exchanged(nodes: int, rate: str, labels: int, seconds: float, seed: int) -> dict[str, float]:
    """The exchanges of a step without computation between them, and the time model's values for the link's rate."""
    with lab(nodes, rate) as name:
        job = "bench.cluster.exchanges:time_step"
        found = run_job(job, name, EXCHANGE_LIMIT, labels=labels, seconds=seconds)
    step = node_step(network_config(), labels, nodes, 0.0, NetworkSpeed(netlab.parse_rate(rate), 0.0))
    return {
        "milliseconds": 1e3 * found["seconds"],
        "busy_milliseconds": 1e3 * found["busy"],
        "messages": messages_per_step(network_config(), labels, nodes),
        "messages_milliseconds": 1e3 * step.messages,
        "wire_milliseconds": 1e3 * step.wire,
    }


def alone(folder: str, nodes: int, threads: int, seconds: float, grows: bool, seed: int) -> dict[str, float]:
    """One rank of so many without the others, pinned to as many cores as it has threads; `grows`: labels are multiplied
    by the number of ranks. Also the same with layers cut down as in `dslide plan`."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    config = network_config(threads=threads)
    rows = rows_of(read_data(folder), BATCH, seed)
    rows = grown(rows, nodes) if grows else rows
    whole = time_alone(config, rows, nodes, False, seconds, most_parameters=sys.maxsize)
    cut = time_alone(config, rows, nodes, False, seconds, trial_parameters())
    return {
        "milliseconds": 1e3 * whole.compute,
        "packing_milliseconds": 1e3 * whole.phases.get(phases.PACKING, 0.0),
        "cut_milliseconds": 1e3 * cut.compute,
        "rebuild_seconds": whole.rebuild,
        "active": whole.active,
    }


def grown(rows: TrialRows, times: int) -> TrialRows:
    """The same rows with so many times the labels; each rank has as many labels of a row as before."""
    ids = rows.y.indices.astype(np.int64)
    y = SparseRows(rows.y.indptr, (ids * times + ids % times).astype(np.int32), rows.y.values, rows.labels * times)
    return TrialRows(rows.x, y, rows.rows)
