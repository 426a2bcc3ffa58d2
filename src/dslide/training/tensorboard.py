"""Event files for TensorBoard, RUN/tensorboard/events.out.tfevents.*, written by the package tensorboardX."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dslide.errors import ConfigError, ModelError
from dslide.training.logging import RecordLog
from dslide.util.plain import make_plain_folder

try:
    # Not SummaryWriter: where a disk is full, its thread ends, and the next record waits for that thread forever.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary
except ImportError:
    EventsWriter = None

_METRIC = re.compile(r"[a-z]+_at_[0-9]+|loss")


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
        self._before: Mapping[str, Any] = {}  # the last step since the start

    def _append(self, record: dict[str, Any]) -> None:
        if self._writer is None:
            make_plain_folder(self._path, ModelError)
            self._writer = EventsWriter(str(self._path / "events"), f".{os.getpid()}-{secrets.token_hex(8)}")
        event = Event(wall_time=record["time"], step=record.get("step", 0))
        if record["record"] == "start":
            self._before = {}
            event.session_log.status = SessionLog.START  # what earlier files have of later steps is void
        elif scalars := self._scalars(record):
            event.summary.value.extend(Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items())
        else:
            return
        self._writer.write_event(event)
        self._writer.flush()

    def _scalars(self, record: Mapping[str, Any]) -> dict[str, float]:
        """The numbers of a record by their names in TensorBoard."""
        match record["record"]:
            case "test" | "validation" as kind:
                return {f"{kind}/{name}": record[name] for name in record if _METRIC.fullmatch(name)}
            case "epoch":
                return {"epoch/loss": record["loss"], "epoch/samples_per_second": record["samples_per_second"]}
            case "tables":
                names = ("mean", "max", "empty_share")
                return {f"tables/{record['layer']}_{name}": record[name] for name in names}
            case "retrieval":
                return {f"retrieval/{name}": record[name] for name in ("recall", "largest", "seconds")}
            case "step":
                return self._step_scalars(record)
        return {}

    def _step_scalars(self, record: Mapping[str, Any]) -> dict[str, float]:
        scalars = {
            "train/loss": record["loss"],
            "train/learning_rate": record["learning_rate"],
            "train/active_neurons": record["active"],
            "machine/rss_bytes": record["rss_bytes"],
        }
        before, self._before = self._before, record
        seconds = record["seconds"] - before.get("seconds", record["seconds"])
        if seconds > 0:
            scalars["train/samples_per_second"] = (record["samples"] - before["samples"]) / seconds
            scalars["machine/waiting_share"] = (record["waited"] - before["waited"]) / seconds
            steps = record["step"] - before["step"]
            scalars["machine/bytes_sent_per_step"] = (record["bytes_sent"] - before["bytes_sent"]) / max(steps, 1)
        return scalars
