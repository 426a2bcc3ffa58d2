"""Counts of all workers, in memory that they share: whichever worker is asked, it answers for all."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np

LIMITS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds: upper ends of a histogram
STATUS = ("2xx", "4xx", "5xx")
NAMES = (
    *(f"requests_{status}" for status in STATUS), "rows", "batches", "batch_seconds", "reloads", "failed_reloads",
    "request_seconds", *(f"up_to_{limit}" for limit in LIMITS),
)  # fmt: skip
PLACE = {name: place for place, name in enumerate(NAMES)}


class Metrics:
    """Each worker adds to a row of its own."""

    def __init__(self, workers: int) -> None:
        shared = mmap.mmap(-1, 8 * workers * len(NAMES))  # survives fork(), and is shared then
        self._counts = np.frombuffer(shared, np.float64).reshape(workers, len(NAMES))

    def add(self, worker: int, name: str, amount: float = 1.0) -> None:
        self._counts[worker, PLACE[name]] += amount

    def request(self, worker: int, status: int, seconds: float) -> None:
        """A request was answered."""
        self.add(worker, f"requests_{status // 100}xx")
        if status < 400:
            self.add(worker, "request_seconds", seconds)
            for limit in LIMITS:
                if seconds <= limit:
                    self.add(worker, f"up_to_{limit}")

    def total(self, name: str) -> float:
        """Of all workers."""
        return float(self._counts[:, PLACE[name]].sum())

    def text(self, gauges: Sequence[tuple[str, str, float]]) -> str:
        """In the text format of Prometheus; `gauges`: further values, by name and meaning."""
        lines: list[str] = []

        def family(name: str, kind: str, meaning: str, values: Sequence[tuple[str, float]]) -> None:
            lines.append(f"# HELP dslide_{name} {meaning}")
            lines.append(f"# TYPE dslide_{name} {kind}")
            lines.extend(f"dslide_{name}{labels} {value:.12g}" for labels, value in values)

        by_status = [(f'{{status="{status}"}}', self.total(f"requests_{status}")) for status in STATUS]
        family("requests_total", "counter", "Requests for predictions, by status.", by_status)
        for name, meaning in (
            ("rows", "Rows predicted."), ("batches", "Batches predicted."),
            ("batch_seconds", "Time spent on batches."), ("reloads", "Newer checkpoints opened."),
            ("failed_reloads", "Checkpoints that could not be opened."),
        ):  # fmt: skip
            family(f"{name}_total", "counter", meaning, [("", self.total(name))])
        answered = self.total("requests_2xx")
        values = [(f'_bucket{{le="{limit}"}}', self.total(f"up_to_{limit}")) for limit in LIMITS]
        values += [('_bucket{le="+Inf"}', answered), ("_sum", self.total("request_seconds")), ("_count", answered)]
        family("request_seconds", "histogram", "Time from the end of a request to its answer.", values)
        for name, meaning, value in gauges:
            family(name, "gauge", meaning, [("", value)])
        return "\n".join(lines) + "\n"
