"""Event files that TensorBoard reads: RUN/tensorboard/events.out.tfevents.*, written without TensorFlow.

A file is a row of frames: length (8 bytes), its checksum (4), an event (length bytes), its checksum (4), all numbers
with the lowest byte first. An event is a protocol buffer; of its message types, `Event`, `Summary` and `SessionLog`, a
few fields are needed:

    Event: 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 summary, 7 session_log
    Summary: 1 value (any number of times); of each: 1 tag (string), 2 simple_value (float)
    SessionLog: 1 status (1: training begins, or goes on; what was told of later steps is then void)
"""

from __future__ import annotations

import os
import platform
import re
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslide.training.logging import RecordLog

if TYPE_CHECKING:
    from dslide.training.trainer import Trainer

_START = b"\x08\x01"  # a SessionLog with status 1
_METRIC = re.compile(r"[a-z]+_at_[0-9]+|loss")
_MOST = 3.4e38  # that a float holds
_VARINT, _EIGHT_BYTES, _TEXT, _FOUR_BYTES = 0, 1, 2, 5  # how a field of a protocol buffer is laid out


class TensorBoardLog(RecordLog):
    """Writes to a file of its own in the folder, which is made. Several starts of a run are several files, which
    TensorBoard shows as one run."""

    def __init__(self, folder: str | Path, every_seconds: float = 1.0) -> None:
        name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
        super().__init__(Path(folder) / name, every_seconds)
        self._before: Mapping[str, Any] = {}  # the start or the last step

    def on_start(self, trainer: Trainer, total_steps: int) -> None:
        with suppress(OSError):  # told when the file can't be written
            self._path.parent.mkdir(parents=True, exist_ok=True)
        super().on_start(trainer, total_steps)

    def _encoded(self, record: dict[str, Any]) -> bytes:
        kind, now, step = record["record"], record["time"], record.get("step", 0)
        if kind == "start":
            self._before = {}
            version = _event(now, 0, _field(3, _TEXT, b"brain.Event:2"))
            return _frame(version) + _frame(_event(now, step, _field(7, _TEXT, _START)))
        scalars = self._scalars(kind, record)
        return _frame(_event(now, step, _field(5, _TEXT, _summary(scalars)))) if scalars else b""

    def _scalars(self, kind: str, record: Mapping[str, Any]) -> dict[str, float]:
        """The numbers of a record by their names in TensorBoard."""
        if kind == "test":
            return {f"test/{name}": record[name] for name in record if _METRIC.fullmatch(name)}
        if kind == "epoch":
            return {"epoch/loss": record["loss"], "epoch/samples_per_second": record["samples_per_second"]}
        if kind == "tables":
            names = ("mean", "max", "empty_share")
            return {f"tables/{record['layer']}_{name}": record[name] for name in names}
        if kind != "step":
            return {}
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


def _event(now: float, step: int, what: bytes) -> bytes:
    return _field(1, _EIGHT_BYTES, struct.pack("<d", now)) + _field(2, _VARINT, _varint(step)) + what


def _summary(scalars: Mapping[str, float]) -> bytes:
    values = [
        _field(1, _TEXT, tag.encode()) + _field(2, _FOUR_BYTES, struct.pack("<f", max(min(value, _MOST), -_MOST)))
        for tag, value in scalars.items()
    ]
    return b"".join(_field(1, _TEXT, value) for value in values)


def _field(number: int, layout: int, content: bytes) -> bytes:
    length = _varint(len(content)) if layout == _TEXT else b""
    return _varint(number << 3 | layout) + length + content


def _varint(number: int) -> bytes:
    """Seven bits in a byte, lowest first; the eighth says that more follow."""
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*content, number])


def _frame(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _checksum(length) + event + _checksum(event)


def _checksum(content: bytes) -> bytes:
    """CRC-32C, turned and added to, as TensorFlow has it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_of_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_CRC = [_crc_of_byte(value) for value in range(256)]
