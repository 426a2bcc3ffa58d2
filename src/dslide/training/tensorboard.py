"""Event files for TensorBoard, RUN/tensorboard/events.out.tfevents.*, written by the package tensorboardX."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from dslide.errors import ConfigError, ModelError
from dslide.training.logging import RecordLog
from dslide.training.scalars import Scalars
from dslide.util.plain import make_plain_folder

try:
    # Not SummaryWriter: where a disk is full, its thread ends, and the next record waits for that thread forever.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary
except ImportError:
    EventsWriter = None


def check_tensorboard() -> None:
    """ConfigError if tensorboardX is not installed."""
    if EventsWriter is None:
        raise ConfigError("tensorboard: the package tensorboardX is not installed; pip install 'dslide[tensorboard]'")


class TensorBoardLog(RecordLog):
    """Writes to a file of its own in the folder, which is created. Several starts of a run are several files, which
    TensorBoard shows as one run. ConfigError if tensorboardX is not installed."""

    def __init__(self, folder: str | Path, every_seconds: float = 1.0) -> None:
        check_tensorboard()
        super().__init__(folder, every_seconds)
        self._writer: Any = None
        self._scalars = Scalars()

    def _append(self, record: dict[str, Any]) -> None:
        if self._writer is None:
            make_plain_folder(self._path, ModelError)
            self._writer = EventsWriter(str(self._path / "events"), f".{os.getpid()}-{secrets.token_hex(8)}")
        event = Event(wall_time=record["time"], step=record.get("step", 0))
        scalars = self._scalars.of(record)
        if record["record"] == "start":
            event.session_log.status = SessionLog.START  # what earlier files have of later steps is void
        elif scalars:
            event.summary.value.extend(Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items())
        else:
            return
        self._writer.write_event(event)
        self._writer.flush()
