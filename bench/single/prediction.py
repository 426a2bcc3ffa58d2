"""Exact prediction over all labels, against the peak of the machine."""

from __future__ import annotations

from bench.lib.machine import peak_speeds
from bench.lib.processes import System
from bench.lib.sections import Metric, Section
from bench.lib.workload import HIDDEN, NETWORK, read_data, timed_calls
from bench.single.plan import Plan
from dslide import Config
from dslide.model.network import Network
from dslide.util.threads import use_threads

BEST = 5  # labels predicted for a row
ROWS = 1024  # at a time


def predict(folder: str, threads: int, seconds: float, seed: int) -> dict[str, float]:
    """Rows a second of the exact best labels, by an untrained network."""
    use_threads(threads)
    test = read_data(folder, "test")
    x = test.x.part(0, min(ROWS, len(test)))
    network = Network(Config(**NETWORK, seed=seed), test.features, test.labels, trainable=False)
    peak = peak_speeds(threads).gflops
    rows_per_second = len(x) / timed_calls(lambda: network.predict_topk(x, BEST), seconds)
    gflops = 2 * rows_per_second * test.labels * HIDDEN / 1e9
    return {"rows_per_second": rows_per_second, "gflops": gflops, "share_of_peak": gflops / peak}


def section(plan: Plan) -> Section:
    """Exact top 5."""
    return Section(
        "Prediction",
        f"The exact best {BEST} of {plan.speed.labels:,} labels, hidden {HIDDEN}, {plan.threads} threads. Operations "
        "are 2 x rows x labels x hidden; their peak is measured in the same process, just before.",
        [System(f"dslide, exact top {BEST}", f"{__name__}:predict", plan.timed_work())],
        [
            Metric("rows_per_second", "rows/s"),
            Metric("gflops", "GFLOP/s"),
            Metric("share_of_peak", "share of peak", ".0%"),
        ],
    )
