"""What a run reports while it trains: a progress line on the terminal, and records in a log file."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from dslide import _core
from dslide.errors import ModelError
from dslide.training.callbacks import (
    CalibrationInfo,
    Callback,
    EpochInfo,
    FitResult,
    StepInfo,
    TestInfo,
    TrialInfo,
    ValidationInfo,
)
from dslide.training.trainer import Trainer
from dslide.util.memory import rss_bytes
from dslide.util.plain import open_to_append
from dslide.util.terminal import launcher_columns, printable
from dslide.util.units import clock, metric_name

BAR_WIDTH = 20  # characters
REDRAW_SECONDS = 0.1
RETRIEVAL = "retrieval"  # the record of what cells find
CLEAR = "\x1b[K"  # erases the rest of a terminal's line


class ProgressLine(Callback):
    """One line per epoch; on a terminal also one redrawn: epoch, bar, loss, samples/s, time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        # Columns of a terminal to which a launcher passes what this process prints; 0: there is none.
        self._columns = launcher_columns() if self._stream is sys.stderr else 0
        self._live = self._columns > 0 or self._stream.isatty()
        self._total = self._first = 0  # steps of the whole run, and those that an earlier run has done
        self._samples = 0
        self._begin = self._drawn = 0.0

    def on_start(self, trainer: Trainer, total_steps: int) -> None:
        self._total, self._first, self._begin = total_steps, trainer.step, time.monotonic()

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        self._samples += info.rows
        now = time.monotonic()
        if not self._live or now - self._drawn < REDRAW_SECONDS:
            return
        self._drawn = now
        seconds = max(now - self._begin, 1e-9)
        left = seconds / max(info.step - self._first, 1) * max(self._total - info.step, 0)
        share = min(info.step / max(self._total, 1), 1)
        bar = "#" * round(share * BAR_WIDTH)
        line = (
            f"epoch {trainer.epoch + 1}/{trainer.network.config.epochs} [{bar:-<{BAR_WIDTH}}] {share:4.0%}  "
            f"loss {info.loss:.4g}  {self._samples / seconds:,.0f} samples/s  {clock(left)} left"
        )
        width = self._columns or shutil.get_terminal_size().columns
        self._print(f"\r{line[: width - 1]}{CLEAR}")

    def on_epoch(self, trainer: Trainer, info: EpochInfo) -> None:
        self._clear()
        self._print(
            f"epoch {info.epoch}/{trainer.network.config.epochs}: loss {info.loss:.4g}, "
            f"{info.samples_per_second:,.0f} samples/s, {clock(info.seconds)}\n"
        )

    def on_test(self, trainer: Trainer, info: TestInfo) -> None:
        precision = {name: value for name, value in info.metrics.items() if name.startswith("p_at_")}
        found = ", ".join(f"{metric_name(name)} {value:.4f}" for name, value in precision.items())
        rows = info.metrics["rows"]
        self._print(f"epoch {info.epoch}/{trainer.network.config.epochs}: {found} on {rows:,.0f} test rows\n")

    def on_validation(self, trainer: Trainer, info: ValidationInfo) -> None:
        names = [*(name for name in info.metrics if name.startswith("p_at_")), info.metric]
        found = ", ".join(f"{metric_name(name)} {info.metrics[name]:.4f}" for name in names)
        verdict = ", the best so far" if info.best else ", no better for some epochs: training ends" * info.ends
        self._print(f"epoch {info.epoch}/{trainer.network.config.epochs}: {found} on held-out rows{verdict}\n")

    def on_calibration(self, trainer: Trainer, info: CalibrationInfo) -> None:
        mixed_in = ", linear classifiers" + " and neighbours" * info.neighbours + " mixed in,"
        what = "calibrated" + mixed_in * (info.linear_cost > 0)
        what = what if info.used else "not calibrated, which would be no better"
        change = f"{metric_name(info.metric)} {info.before:.4f} -> {info.after:.4f}, cross-validated"
        self._print(f"{what} on held-out rows: {change}\n")

    def on_trial(self, info: TrialInfo) -> None:
        self._clear()
        changed = ", ".join(f"{name} {option_text(value)}" for name, value in info.options.items()) or "defaults"
        verdict = "" if info.best is None else f", {'better' if info.better else 'not better'} than {info.best:.4f}"
        trained = f"trained on {info.rows:,} rows in {clock(info.seconds)}"
        self._print(f"trial {info.number}: {changed}: {trained}, {info.score:.4f} on held-out rows{verdict}\n")

    def on_end(self, trainer: Trainer, result: FitResult) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._live:
            self._print(f"\r{CLEAR}")

    def _print(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class TrialLine(ProgressLine):
    """Only the line that is redrawn, for a training that is a trial."""

    def on_epoch(self, trainer: Trainer, info: EpochInfo) -> None:
        pass

    def on_validation(self, trainer: Trainer, info: ValidationInfo) -> None:
        pass

    def on_calibration(self, trainer: Trainer, info: CalibrationInfo) -> None:
        pass


def option_text(value: Any) -> str:
    """The value of an option as the command line takes it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def warn(message: str) -> None:
    """Prints a problem that does not end training."""
    print(f"dslide: warning: {printable(message)}", file=sys.stderr, flush=True)


class RecordLog(Callback, ABC):
    """Makes records of a training: start, the first step, the last and one in `every_seconds` between, occupancy of
    hash tables, what cells find, epochs, tests, checkpoints, end. Subclasses write them to `path`. `about` is added to
    the first; the `trials` before the training follow it."""

    errors: tuple[type[Exception], ...] = (OSError,)  # of writing, which must not end training

    def __init__(
        self, path: str | Path, every_seconds: float = 1.0, about: Mapping[str, Any] | None = None,
        trials: Sequence[TrialInfo] = (),
    ) -> None:  # fmt: skip
        self._path = Path(path)
        self._every, self._about, self._trials = every_seconds, about or {}, trials
        self._written = -math.inf
        self._unwritten: tuple[StepInfo, int] | None = None  # the last step, and its epoch
        self._rebuilds: dict[str, int] = {}  # of hash tables, by layer, and of cells, at the last record of them
        self._failed = False  # writing did, which was reported

    def on_start(self, trainer: Trainer, total_steps: int) -> None:
        network, comm = trainer.network, trainer.comm
        versions = {"dslide": version("dslide"), "numpy": version("numpy"), "python": platform.python_version()}
        self._write(
            "start", rank=comm.rank, ranks=comm.size, host=platform.node(), process=os.getpid(),
            config=network.config.to_dict(), features=network.features, labels=network.labels,
            parameters=network.parameters, threads=_core.threads(), step=trainer.step, samples=trainer.samples,
            total_steps=total_steps, versions=versions, **self._about,
        )  # fmt: skip
        for trial in self._trials:
            self._write("trial", **vars(trial))

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        self._unwritten = info, trainer.epoch + 1
        if time.monotonic() - self._written >= self._every:
            self._written = time.monotonic()
            self._write_step(trainer)
            self._write_tables(trainer)
            self._write_retrieval(trainer)

    def _write_step(self, trainer: Trainer) -> None:
        """The last step, and the totals of this rank; seconds and bytes count from the start."""
        if self._unwritten is None:
            return
        (info, epoch), self._unwritten = self._unwritten, None
        stats = trainer.rank_stats()
        self._write(
            "step", **vars(info), epoch=epoch, samples=trainer.samples, seconds=round(stats.seconds, 6),
            waited=round(stats.waited, 6), bytes_sent=stats.bytes_sent, rss_bytes=rss_bytes(),
        )  # fmt: skip

    def _write_tables(self, trainer: Trainer) -> None:
        """Occupancy of this rank's hash tables, if they were rebuilt since the last record of it."""
        for layer in trainer.network.layers:
            if layer.lsh is None or self._rebuilds.get(layer.name) == layer.lsh.rebuilds:
                continue
            self._rebuilds[layer.name] = layer.lsh.rebuilds
            found = layer.lsh.tables.occupancy()
            values = {name: getattr(found, name) for name in ("mean", "max", "empty_share", "dropped", "by_size")}
            self._write("tables", layer=layer.name, step=trainer.step, **values)

    def _write_retrieval(self, trainer: Trainer) -> None:
        """What cells of hidden vectors find, if they were rebuilt since the last record of it."""
        cells = trainer.network.cells
        if cells is not None and cells.stats is not None and self._rebuilds.get(RETRIEVAL) != cells.rebuilds:
            self._rebuilds[RETRIEVAL] = cells.rebuilds
            self._write(RETRIEVAL, step=trainer.step, **vars(cells.stats))

    def on_epoch(self, trainer: Trainer, info: EpochInfo) -> None:
        self._write("epoch", **vars(info), step=trainer.step)

    def on_test(self, trainer: Trainer, info: TestInfo) -> None:
        self._write("test", epoch=info.epoch, step=trainer.step, seconds=info.seconds, **info.metrics)

    def on_validation(self, trainer: Trainer, info: ValidationInfo) -> None:
        values = {name: value for name, value in vars(info).items() if name != "metrics"}
        self._write("validation", step=trainer.step, **values, **info.metrics)

    def on_calibration(self, trainer: Trainer, info: CalibrationInfo) -> None:
        self._write("calibration", step=trainer.step, **vars(info))

    def on_checkpoint(self, trainer: Trainer, step: int) -> None:
        self._write("checkpoint", step=trainer.step, of_step=step)

    def on_end(self, trainer: Trainer, result: FitResult) -> None:
        self._write_step(trainer)
        self._write("end", **vars(result), step=trainer.step)

    def _write(self, kind: str, **values: Any) -> None:
        record = {"record": kind, "time": round(time.time(), 3), **values}
        with self._tolerated():
            self._append(record)

    @contextmanager
    def _tolerated(self) -> Iterator[None]:
        """Reports the first error of writing, and goes on."""
        try:
            yield
        except self.errors as error:
            if not self._failed:
                warn(f"{self._path}: can't be written: {getattr(error, 'strerror', None) or error}; training continues")
            self._failed = True

    @abstractmethod
    def _append(self, record: dict[str, Any]) -> None:
        """Writes a record; one of `errors` if that is impossible."""


class JsonLog(RecordLog):
    """Appends records to a file, one JSON object per line, flushed at once. ModelError if the file is a link, or no
    regular file."""

    def __init__(
        self, path: str | Path, every_seconds: float = 1.0, about: Mapping[str, Any] | None = None,
        trials: Sequence[TrialInfo] = (),
    ) -> None:  # fmt: skip
        super().__init__(path, every_seconds, about, trials)
        with suppress(OSError):  # which the first record reports
            open_to_append(path, ModelError).close()

    def on_start(self, trainer: Trainer, total_steps: int) -> None:
        # Ends a line that a crash cut off, so that it does not damage the next one.
        with suppress(OSError), open_to_append(self._path, ModelError) as file:
            if size := file.seek(0, os.SEEK_END):
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")
        super().on_start(trainer, total_steps)

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(finite(record)).encode() + b"\n"
        with open_to_append(self._path, ModelError) as file:
            while line := line[file.write(line) :]:  # a disk that is nearly full takes a part
                pass


def finite(value: Any) -> Any:
    """The value with numbers that JSON doesn't have (NaN, infinities) as null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
