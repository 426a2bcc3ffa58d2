"""Exact prediction over all labels, against the machine's peak."""

from __future__ import annotations

from dslide import Config
from dslide.predictor import Predictor
from dslide.threads import use_threads

from . import machine
from .plan import Plan
from .report import Figure, Section
from .runs import System
from .workload import HIDDEN, NETWORK, make_data, read_data, timed_calls

BEST = 5  # labels predicted for a row
ROWS = 1024  # at a time


def predict(folder: str, threads: int, seconds: float, seed: int) -> dict[str, float]:
    """Rows a second of the exact best labels, by a network that has learned nothing."""
    use_threads(threads)
    test = read_data(folder, "test")
    x = test.x.rows(0, min(ROWS, len(test)))
    network = Predictor(Config(**NETWORK, seed=seed), test.features, test.labels, trainable=False)
    peak = machine.measure(threads, seed)["gflops"]
    rows_per_second = len(x) / timed_calls(lambda: network.predict_topk(x, BEST), seconds)
    gflops = 2 * rows_per_second * test.labels * HIDDEN / 1e9
    return {"rows_per_second": rows_per_second, "gflops": gflops, "share_of_peak": gflops / peak}


def section(plan: Plan) -> Section:
    """Exact top 5."""
    work = {"folder": str(make_data(plan.data, plan.speed)), "threads": plan.threads, "seconds": plan.seconds}
    return Section(
        "Prediction",
        f"The exact best {BEST} of {plan.speed.labels:,} labels, hidden {HIDDEN}, {plan.threads} threads. Operations "
        "are 2 x rows x labels x hidden; their peak was measured in the same process, just before.",
        [System(f"dslide, exact top {BEST}", f"{__name__}:predict", work)],
        [
            Figure("rows_per_second", "rows/s"),
            Figure("gflops", "GFLOP/s"),
            Figure("share_of_peak", "share of peak", ".0%"),
        ],
    )
