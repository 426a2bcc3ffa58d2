"""What a training run tells while it goes on: a line on the terminal, and records in a log file."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .link import TERMINAL
from .trainer import Callback

if TYPE_CHECKING:
    from .trainer import EpochInfo, Result, StepInfo, TestInfo, Trainer

BAR_WIDTH = 20  # characters
REDRAW_SECONDS = 0.1


class ProgressLine(Callback):
    """One line per epoch; on a terminal also one redrawn: epoch, bar, loss, samples/s, time left."""

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        # Columns of a terminal that somebody else writes to for this process (launch.py); 0: there is none.
        self._columns = int(os.environ.get(TERMINAL, 0)) if self._stream is sys.stderr else 0
        self._live = not quiet and (self._columns > 0 or self._stream.isatty())
        self._total = 0  # steps of the whole run
        self._first = 0  # steps that an earlier run has done
        self._samples = 0
        self._begin = self._drawn = 0.0

    def on_start(self, trainer: Trainer, total_steps: int) -> None:
        self._total, self._first = total_steps, trainer.step
        self._begin = time.monotonic()

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
        self._stream.write(f"\r{line[: width - 1]}\x1b[K")
        self._stream.flush()

    def on_epoch(self, trainer: Trainer, info: EpochInfo) -> None:
        if self._quiet:
            return
        self._clear()
        self._stream.write(
            f"epoch {info.epoch}/{trainer.network.config.epochs}: loss {info.loss:.4g}, "
            f"{info.samples_per_second:,.0f} samples/s, {clock(info.seconds)}\n"
        )
        self._stream.flush()

    def on_test(self, trainer: Trainer, info: TestInfo) -> None:
        if self._quiet:
            return
        precision = {name: value for name, value in info.metrics.items() if name.startswith("p_at_")}
        found = ", ".join(f"P@{name[5:]} {value:.4f}" for name, value in precision.items())
        rows = info.metrics["rows"]
        self._stream.write(f"epoch {info.epoch}/{trainer.network.config.epochs}: {found} on {rows:,.0f} test rows\n")
        self._stream.flush()

    def on_end(self, trainer: Trainer, result: Result) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def clock(seconds: float) -> str:
    """Like 7.5 s, 12:34 or 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def warn(message: str) -> None:
    """Tells something that ends nothing."""
    print(f"dslide: warning: {message}", file=sys.stderr, flush=True)


class JsonLog(Callback):
    """Appends one JSON object per line to a file: start, steps now and then, epochs, tests, end. All flushed."""

    def __init__(self, path: str | Path, every_seconds: float = 1.0) -> None:
        self._path = Path(path)
        self._every = every_seconds
        self._written = -math.inf
        self._failed = False  # and it was told

    def on_start(self, trainer: Trainer, total_steps: int) -> None:
        network = trainer.network
        self._write(
            "start",
            rank=trainer.comm.rank,
            ranks=trainer.comm.size,
            host=platform.node(),
            process=os.getpid(),
            config=network.config.to_dict(),
            features=network.features,
            labels=network.labels,
            parameters=network.parameters,
            step=trainer.step,
            total_steps=total_steps,
            versions={
                "dslide": version("dslide"),
                "numpy": version("numpy"),
                "python": platform.python_version(),
            },
        )

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        if time.monotonic() - self._written >= self._every:
            self._written = time.monotonic()
            self._write("step", **vars(info), epoch=trainer.epoch + 1)

    def on_epoch(self, trainer: Trainer, info: EpochInfo) -> None:
        self._write("epoch", **vars(info), step=trainer.step)

    def on_test(self, trainer: Trainer, info: TestInfo) -> None:
        self._write("test", epoch=info.epoch, step=trainer.step, seconds=info.seconds, **info.metrics)

    def on_end(self, trainer: Trainer, result: Result) -> None:
        self._write("end", **vars(result), step=trainer.step)

    def _write(self, kind: str, **values: Any) -> None:
        record = {"record": kind, "time": round(time.time(), 3), **values}
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(finite(record)) + "\n")
        except OSError as error:  # a full disk must not end training
            if not self._failed:
                warn(f"{self._path}: can't be written: {error.strerror or error}; training goes on")
            self._failed = True


def finite(value: Any) -> Any:
    """The value with numbers that JSON doesn't have (NaN, infinities) as null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
