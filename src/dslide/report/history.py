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
class Tables:
    """How full the hash tables of a layer are."""

    by_size: list[float]  # neurons in buckets of 1, of 2 to 3, of 4 to 7 and so on
    step: float
    fullest: float
    empty_share: float
    dropped: float


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
    rank_seconds: dict[int, tuple[float, float]] = field(default_factory=dict)  # of computing and waiting, by rank
    tables: dict[str, Tables] = field(default_factory=dict)  # by layer, the newest
    checkpoints: list[Moment] = field(default_factory=list)
    events: deque[Moment] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    events_total: int = 0
    phases: dict[str, float] = field(default_factory=dict)  # milliseconds in a step
    _clock: Curve = field(default_factory=Curve)  # seconds of training over time of day
    _offset: float = 0.0  # seconds of training before the last start
    _first_samples: float = 0.0  # done before the last start,
    _first_trained: float = 0.0  # and trained on by then, including lost ones
    _before: dict[str, float] | None = None  # the step from which the next speed is computed

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
        return dict(self.start.get("config", {}))

    @property
    def state(self) -> str:
        """How it ended."""
        if not self.ended:
            return "no end yet"
        return "interrupted" if self.interrupted else "finished"

    # ---- reading --------------------------------------------------------------------------------------------------

    def take(self, record: Record) -> None:
        """A record of the log; unknown kinds are ignored."""
        kind = record.text("record")
        if self.starts == 0 and kind != "start":
            raise DataError(f"{record.where}: expected the start of a run, not {kind!r}")
        if kind in ("start", "step", "epoch", "test", "validation", "tables", "retrieval", "checkpoint", "end"):
            getattr(self, f"_{kind}")(record)

    def _start(self, record: Record) -> None:
        record.part("config")  # checks that it is an object
        self.start, self.ended, self.rank_seconds = record.values, False, {}
        self.starts += 1
        step, samples = record.number("step") or 0.0, record.number("samples") or 0.0
        self.ranks = int(record.number("ranks") or 1)
        self.planned_bytes = record.number("planned_bytes")
        if self.starts > 1:
            self._event(Moment(self.seconds, step, f"resumed from step {step:,.0f}, had reached {self.step:,.0f}"))
        self.step = step
        if "loss over samples" in self.curves:
            self.curves["loss over samples"].cut(samples)
        self._offset, self._before = self.seconds, None
        self._first_samples, self._first_trained = samples, self.samples

    def _step(self, record: Record) -> None:
        found = record.numbers("step", "seconds", "samples")
        if found is None:
            return
        self.step, self.seconds = found["step"], self._offset + found["seconds"]
        self.samples = self._first_trained + found["samples"] - self._first_samples
        if (now := record.number("time")) is not None:
            self._clock.add(now, self.seconds)
        if (loss := record.number("loss")) is not None:
            self.curve("loss").add(self.seconds, loss)
            self.curve("loss over samples").add(found["samples"], loss)
        if (active := record.number("active")) is not None:
            self.curve("active").add(self.seconds, active)
        if (memory := record.number("rss_bytes")) is not None:
            self.curve("memory").add(self.seconds, memory)
            self.peak_bytes = max(self.peak_bytes or 0.0, memory)
        if (more := record.numbers("waited", "bytes_sent")) is not None:
            self._speeds(found | more)

    def _speeds(self, now: dict[str, float]) -> None:
        """Samples, bytes and waiting per second or step, since the last recorded step."""
        before = self._before or now
        did = {name: value - before[name] for name, value in now.items()}
        seconds, steps = did["seconds"], did["step"]
        if self._before and seconds < LEAST_SECONDS and self.curves.get("speed"):
            return
        self._before = now
        if seconds <= 0 or steps <= 0:
            return
        middle = self.seconds - seconds / 2
        self.curve("speed").add(middle, did["samples"] / seconds, seconds)
        if self.ranks > 1:
            self.curve("bytes").add(middle, did["bytes_sent"] / steps, steps)
            self.curve("waiting").add(middle, 100 * did["waited"] / seconds, seconds)

    def _epoch(self, record: Record) -> None:
        self.loss = record.number("loss")

    def _test(self, record: Record) -> None:
        seconds = record.number("seconds")
        if seconds is None:
            return
        rows, self.test_loss = record.number("rows") or 0.0, record.number("loss")
        measured = {name: record.number(name) for name in record.values if METRIC.fullmatch(name)}
        self.metrics = {name: value for name, value in measured.items() if value is not None}
        losses = {} if self.test_loss is None else {"test loss": self.test_loss}
        for name, value in (self.metrics | losses).items():
            self.test_curve(name, rows).add(self._offset + seconds, value)

    def _validation(self, record: Record) -> None:
        seconds, score = record.number("seconds"), record.number(record.text("metric"))
        if seconds is not None and score is not None:
            self.curve("validation").add(self._offset + seconds, score)

    def _tables(self, record: Record) -> None:
        found, layer = record.numbers("step", "max", "empty_share", "dropped"), record.text("layer")[:40]
        by_size = record.row("by_size")[:32]
        if found is not None and (layer in self.tables or len(self.tables) < MOST_EVENTS):
            self.tables[layer] = Tables(by_size, *found.values())

    def _retrieval(self, record: Record) -> None:
        if (recall := record.number("recall")) is not None:
            self.curve("retrieval").add(self.seconds, 100 * recall)

    def _checkpoint(self, record: Record) -> None:
        checkpoints, step = self.checkpoints, record.number("of_step") or 0.0
        if len(checkpoints) == 2 * MOST_EVENTS:
            del checkpoints[::2]
        checkpoints.append(Moment(self.seconds, step, f"checkpoint after {step:,.0f} steps"))

    def _end(self, record: Record) -> None:
        self.ended, self.interrupted = True, record.values.get("interrupted") is True
        if (found := record.numbers("step", "seconds", "samples")) is not None:
            self.step, self.seconds = found["step"], self._offset + found["seconds"]
            self.samples = self._first_trained + found["samples"]
        for number, rank in enumerate(record.part("load_balance").parts("per_rank")[:MOST_RANKS]):
            if (did := rank.numbers("compute_seconds", "comm_seconds")) is not None:
                self.rank_seconds[number] = did["compute_seconds"], did["comm_seconds"]

    def take_summary(self, record: Record) -> None:
        """The summary, unless it is of an earlier start."""
        peak = record.number("peak_rss_bytes")
        if self.ended and record.number("steps") == self.step and peak is not None:
            self.peak_bytes = peak

    def take_event(self, record: Record) -> None:
        """An event of the launcher."""
        now, kind, text = record.number("time"), record.text("event"), record.text("text")
        if now is not None and kind not in SKIPPED:
            self._event(Moment(self._clock.at(now), record.number("step") or 0.0, text[:300]))

    def _event(self, moment: Moment) -> None:
        self.events.append(moment)
        self.events_total += 1

    def take_profile(self, record: Record) -> None:
        """Phases of a step, without the total."""
        phases = record.part("phases")
        for name in list(phases.values)[:MOST_RANKS]:
            milliseconds = phases.part(name).number("ms_per_step")
            if name != "all" and milliseconds is not None:
                self.phases[name[:60]] = milliseconds


def read_run(folder: str | Path) -> RunHistory:
    """Reads a run's folder; DataError if it is not a run's, or has invalid values."""
    path = Path(folder)
    log = path / "log.jsonl"
    if not path.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    if not log.exists():
        raise DataError(f"{folder}: is not the folder of a run: expected log.jsonl in it, as dslide train writes it")
    run = RunHistory(str(folder))
    for record in records(log):
        run.take(record)
    if run.starts == 0:
        raise DataError(f"{log}: is empty: training has not begun")
    if (path / "events.jsonl").exists():
        for record in records(path / "events.jsonl"):
            run.take_event(record)
    for name, take in (("summary.json", run.take_summary), ("profile.json", run.take_profile)):
        if (path / name).exists():
            value = read_plain_json(path / name, DataError)
            if not isinstance(value, dict):
                raise DataError(f"{path / name}: expected a JSON object")
            take(Record(value, str(path / name)))
    return run
