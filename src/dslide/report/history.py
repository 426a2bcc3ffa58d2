"""Reads the folder of a run in bounded memory: log.jsonl and, if they exist, summary.json, events.jsonl and
profile.json.

A run may have been started several times. Time is that of training over all starts, including steps that were lost and
repeated; curves over samples have only the last repetition."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dslide.errors import DataError
from dslide.report.curve import Curve
from dslide.report.records import Record, records
from dslide.util.json_files import read_plain_json

METRIC = re.compile(r"(p|r|ndcg|psp)_at_([0-9]{1,4})")
LEAST_SECONDS = 0.5  # between two steps of which speeds are taken
MOST_EVENTS, MOST_RANKS, MOST_TESTS = 100, 64, 4  # of a run on the page
SKIPPED = ("start", "pause", "wait", "done")  # events that the log has too


@dataclass(frozen=True)
class Moment:
    """An event or a checkpoint."""

    seconds: float  # of training
    step: float
    text: str


@dataclass(frozen=True)
class RankTimes:
    """Time and traffic of a rank since the last start."""

    rank: int
    compute_seconds: float
    wait_seconds: float
    bytes_per_step: float


@dataclass
class RunHistory:
    """A run, as its folder describes it."""

    name: str  # its folder
    curves: dict[str, Curve] = field(default_factory=dict)  # over seconds, or over samples if the name ends with that
    tests: dict[str, dict[float, Curve]] = field(default_factory=dict)  # by metric and number of rows
    start: Mapping[str, Any] = field(default_factory=dict)  # the last start record
    starts: int = 0
    ended: bool = False  # the log has the end of the last start
    interrupted: bool = False
    seconds: float = 0.0
    step: float = 0.0
    samples: float = 0.0  # trained on, those of lost steps included
    loss: float | None = None  # of the last epoch
    metrics: dict[str, float] = field(default_factory=dict)  # of the last test
    test_loss: float | None = None
    planned_bytes: float | None = None
    peak_bytes: float | None = None  # of the rank with the most; while it runs, of rank 0
    ranks: int = 1
    per_rank: list[RankTimes] = field(default_factory=list)
    tables: dict[str, Tables] = field(default_factory=dict)  # by layer, the newest
    checkpoints: list[Moment] = field(default_factory=list)
    events: deque[Moment] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    events_total: int = 0
    phases: dict[str, float] = field(default_factory=dict)  # milliseconds in a step

    def curve(self, name: str) -> Curve:
        """The curve of this name, created if there is none."""
        return self.curves.setdefault(name, Curve())

    def test_curve(self, name: str, rows: float) -> Curve:
        """The curve of a metric on so many rows; the newest one if there are MOST_TESTS already."""
        curves = self.tests.setdefault(name, {})
        if rows not in curves and len(curves) >= MOST_TESTS:
            rows = next(reversed(curves))
        return curves.setdefault(rows, Curve())

    def pieces(self, name: str) -> list[Curve]:
        """The curves of this name that have points; a metric has one for each number of rows."""
        return [curve for curve in (self.curves.get(name), *self.tests.get(name, {}).values()) if curve]

    @property
    def config(self) -> dict[str, Any]:
        """The options of its last start."""
        config = self.start.get("config")
        return config if isinstance(config, dict) else {}

    @property
    def state(self) -> str:
        """How it ended."""
        if not self.ended:
            return "no end yet"
        return "interrupted" if self.interrupted else "finished"


@dataclass(frozen=True)
class Tables:
    """How full the hash tables of a layer are."""

    step: float
    by_size: list[float]  # neurons in buckets of 1, of 2 to 3, of 4 to 7 and so on
    fullest: float
    empty_share: float
    dropped: float


def read_run(folder: str | Path) -> RunHistory:
    """Reads a run's folder; DataError if it is not a run's, or has invalid values."""
    path = Path(folder)
    log = path / "log.jsonl"
    if not path.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    if not log.exists():
        raise DataError(f"{folder}: is not the folder of a run: expected log.jsonl in it, as dslide train writes it")
    reader = _Reader(RunHistory(str(folder)))
    for record in records(log):
        reader.take(record)
    if reader.run.starts == 0:
        raise DataError(f"{log}: is empty: training has not begun")
    if (path / "summary.json").exists():
        reader.take_summary(_object(path / "summary.json"))
    if (path / "events.jsonl").exists():
        for record in records(path / "events.jsonl"):
            reader.take_event(record)
    if (path / "profile.json").exists():
        reader.take_profile(_object(path / "profile.json"))
    return reader.run


def _object(path: Path) -> Record:
    value = read_plain_json(path, DataError)
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object")
    return Record(value, str(path))


class _Reader:
    """Collects records in their order."""

    def __init__(self, run: RunHistory) -> None:
        self.run = run
        self._clock = Curve()  # seconds of training over time of day
        self._offset = 0.0  # seconds of training before the last start
        self._first_samples = 0.0  # done before the last start,
        self._first_trained = 0.0  # and trained on by then, including lost ones
        self._before: dict[str, float] | None = None  # the step from which the next speed is computed

    def take(self, record: Record) -> None:
        """A record of the log; unknown kinds are ignored."""
        kind, run = record.text("record"), self.run
        if run.starts == 0 and kind != "start":
            raise DataError(f"{record.where}: expected the start of a run, not {kind!r}")
        if kind == "start":
            self._start(record)
        elif kind == "step":
            self._step(record)
        elif kind == "epoch":
            run.loss = record.number("loss")
        elif kind == "test":
            self._test(record)
        elif kind == "tables":
            self._tables(record)
        elif kind == "checkpoint":
            if len(run.checkpoints) == 2 * MOST_EVENTS:
                del run.checkpoints[::2]
            step = record.number("of_step") or 0.0
            run.checkpoints.append(Moment(run.seconds, step, f"checkpoint after {step:,.0f} steps"))
        elif kind == "end":
            self._end(record)

    def _start(self, record: Record) -> None:
        run = self.run
        run.start, run.ended, run.per_rank = record.values, False, []
        run.starts += 1
        step, samples = record.number("step") or 0.0, record.number("samples") or 0.0
        run.ranks = int(record.number("ranks") or 1)
        record.part("config")
        run.planned_bytes = record.number("planned_bytes")
        if run.starts > 1:
            self._event(Moment(run.seconds, step, f"resumed from step {step:,.0f}, had reached {run.step:,.0f}"))
        run.step = step
        for name, curve in run.curves.items():
            if name.endswith("samples"):
                curve.cut(samples)
        self._offset, self._before = run.seconds, None
        self._first_samples, self._first_trained = samples, run.samples

    def _step(self, record: Record) -> None:
        run = self.run
        found = record.numbers("step", "seconds", "samples")
        if found is None:
            return
        run.step, run.seconds = found["step"], self._offset + found["seconds"]
        run.samples = self._first_trained + found["samples"] - self._first_samples
        if (now := record.number("time")) is not None:
            self._clock.add(now, run.seconds)
        for name, curve in (("loss", "loss"), ("active", "active"), ("rss_bytes", "memory")):
            if (value := record.number(name)) is not None:
                run.curve(curve).add(run.seconds, value)
                if name == "loss":
                    run.curve("loss over samples").add(found["samples"], value)
                if name == "rss_bytes":
                    run.peak_bytes = max(run.peak_bytes or 0.0, value)
        if (more := record.numbers("waited", "bytes_sent")) is not None:
            self._speeds(found | more)

    def _speeds(self, now: dict[str, float]) -> None:
        """Samples, bytes and waiting per second or step, since the last recorded step."""
        run, before = self.run, self._before
        if before is None:
            self._before = now
            return
        seconds, steps = now["seconds"] - before["seconds"], now["step"] - before["step"]
        if seconds < LEAST_SECONDS and run.curves.get("speed"):
            return
        self._before = now
        if seconds <= 0 or steps <= 0:
            return
        middle = run.seconds - seconds / 2
        run.curve("speed").add(middle, (now["samples"] - before["samples"]) / seconds, seconds)
        if run.ranks > 1:
            run.curve("bytes").add(middle, (now["bytes_sent"] - before["bytes_sent"]) / steps, steps)
            run.curve("waiting").add(middle, 100 * (now["waited"] - before["waited"]) / seconds, seconds)

    def _test(self, record: Record) -> None:
        run, seconds = self.run, record.number("seconds")
        if seconds is None:
            return
        run.metrics, rows = {}, record.number("rows") or 0.0
        run.test_loss = record.number("loss")
        for name in record.values:
            if METRIC.fullmatch(name) and (value := record.number(name)) is not None:
                run.metrics[name] = value
                run.test_curve(name, rows).add(self._offset + seconds, value)
        if run.test_loss is not None:
            run.test_curve("test loss", rows).add(self._offset + seconds, run.test_loss)

    def _tables(self, record: Record) -> None:
        found = record.numbers("step", "max", "empty_share", "dropped")
        if found is None:
            return
        row = record.row("by_size")[:32]
        layer = record.text("layer")[:40]
        tables = Tables(found["step"], row, found["max"], found["empty_share"], found["dropped"])
        if layer in self.run.tables or len(self.run.tables) < MOST_EVENTS:
            self.run.tables[layer] = tables

    def _end(self, record: Record) -> None:
        run = self.run
        run.ended, run.interrupted = True, record.values.get("interrupted") is True
        if (found := record.numbers("step", "seconds", "samples")) is not None:
            run.step, run.seconds = found["step"], self._offset + found["seconds"]
            run.samples = self._first_trained + found["samples"]
        for number, rank in enumerate(record.part("load_balance").parts("per_rank")[:MOST_RANKS]):
            did = rank.numbers("compute_seconds", "comm_seconds", "bytes_sent_per_step")
            if did is not None:
                run.per_rank.append(RankTimes(number, *did.values()))

    def take_summary(self, record: Record) -> None:
        """The summary, unless it is of an earlier start."""
        peak = record.number("peak_rss_bytes")
        if self.run.ended and record.number("steps") == self.run.step and peak is not None:
            self.run.peak_bytes = peak

    def take_event(self, record: Record) -> None:
        """An event of the launcher."""
        now, kind, text = record.number("time"), record.text("event"), record.text("text")
        if now is not None and kind not in SKIPPED:
            self._event(Moment(self._clock.at(now), record.number("step") or 0.0, text[:300]))

    def _event(self, moment: Moment) -> None:
        self.run.events.append(moment)
        self.run.events_total += 1

    def take_profile(self, record: Record) -> None:
        """Phases of a step, without the total."""
        phases = record.part("phases")
        for name in list(phases.values)[:MOST_RANKS]:
            milliseconds = phases.part(name).number("ms_per_step")
            if name != "all" and milliseconds is not None:
                self.run.phases[name[:60]] = milliseconds
