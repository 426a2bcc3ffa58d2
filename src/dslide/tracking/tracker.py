"""What callbacks for tracking services have in common: which numbers of a run go there and when."""

from __future__ import annotations

import importlib.util
import os
import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from dslide.errors import ConfigError, ModelError, Terminated
from dslide.report import write_report
from dslide.training.callbacks import FitResult, RunInfo
from dslide.training.export import export_model
from dslide.training.logging import RecordLog
from dslide.training.scalars import Scalars, measured
from dslide.util.atomic import AtomicFile
from dslide.util.plain import read_plain

if TYPE_CHECKING:
    from dslide.training.run import RunResult
    from dslide.training.trainer import Trainer

State = Literal["finished", "interrupted", "failed"]
LONGEST_ID = 100  # bytes
NOT_PARAMETERS = ("record", "time", "rank", "step", "samples", "config", "versions", "process")  # of a start record


class Tracker(RecordLog):
    """Reports a training to a service, from rank 0 alone: its options, then numbers at most once in `every_seconds`, at
    the end of a whole run the page of its report, its summary and, with `model`, its network without the state of the
    optimizer. A run that is resumed goes on in the service where it was.

    ConfigError, before training, if the service can't be reached; later problems are reported once, and training
    continues."""

    service: str  # its name
    package: str  # that is needed, also the name of the extra and of the option

    def __init__(self, every_seconds: float = 1.0, model: bool = True) -> None:
        if importlib.util.find_spec(self.package) is None:
            missing = f"the package {self.package} is not installed; pip install 'dslide[{self.package}]'"
            raise ConfigError(f"{self.package}: {missing}")
        super().__init__(self.service, every_seconds)
        self._model = model
        self._folder: Path | None = None  # of a whole run
        self._scalars = Scalars()
        self._open = False

    def on_run(self, info: RunInfo) -> None:
        self._folder = info.folder
        self._about = {"data": info.data.source, "rows": len(info.data)}

    def _append(self, record: dict[str, Any]) -> None:
        if record["record"] == "start":
            self._start(record)
        scalars = self._scalars.of(record)
        if self._open and scalars:
            self._log(scalars, record["step"])

    def _start(self, record: Mapping[str, Any]) -> None:
        if self._open or record["rank"] > 0:
            return
        options = {name: value for name, value in record.items() if name not in NOT_PARAMETERS}
        known = self._folder and self._folder / f"{self.package}-run"
        before = None
        if known and os.path.lexists(known):
            before = read_plain(known, ModelError, LONGEST_ID).decode("ascii", "replace").strip()
            if not re.fullmatch(r"[\w-]+", before, re.ASCII):
                raise ModelError(f"{known}: damaged: expected the name of a run of {self.service}")
        number = self._begin(self._folder.name if self._folder else None, before, record["config"] | options)
        self._open = True
        if known and not before:
            with AtomicFile(known, encoding="ascii") as file:
                file.write(f"{number}\n")

    def on_end(self, trainer: Trainer, result: FitResult) -> None:
        super().on_end(trainer, result)
        if self._folder is None:
            self._close("interrupted" if result.interrupted else "finished")

    def on_result(self, result: RunResult) -> None:
        if self._open:
            with self._tolerated(), TemporaryDirectory(dir=result.folder, prefix=".tracking-") as temporary:
                if result.metrics:
                    self._log(measured("test", result.metrics), result.summary["steps"])
                report = Path(temporary) / "report.html"
                write_report([result.folder], report)
                self._add_result(report, result.summary)
                if self._model:
                    export_model(result.folder, Path(temporary) / "model")
                    self._add_model(Path(temporary) / "model")
        self._close("interrupted" if result.interrupted else "finished")

    def on_failure(self, error: BaseException) -> None:
        self._close("interrupted" if isinstance(error, (KeyboardInterrupt, Terminated)) else "failed")

    def _close(self, state: State) -> None:
        if self._open:
            self._open = False
            with self._tolerated():
                self._finish(state)

    @abstractmethod
    def _begin(self, name: str | None, before: str | None, options: Mapping[str, Any]) -> str:
        """Begins a run of the service, or goes on with the one it was before; gives its identifier."""

    @abstractmethod
    def _log(self, scalars: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def _add_result(self, report: Path, summary: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def _add_model(self, folder: Path) -> None: ...

    @abstractmethod
    def _finish(self, state: State) -> None: ...
