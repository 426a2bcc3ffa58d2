"""Event files for TensorBoard, read back by a reader of their format that shares nothing with the writer."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dslide.config import Config
from dslide.data import Dataset, SparseRows
from dslide.training.callbacks import EpochInfo
from dslide.training.callbacks import TestInfo as Info
from dslide.training.tensorboard import TensorBoardLog
from dslide.training.trainer import Trainer


def crc32c(content: bytes) -> int:
    """Division of polynomials, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in content:
        for bit in range(8):
            odd = (crc ^ byte >> bit) & 1
            crc = crc >> 1 ^ 0x82F63B78 * odd
    return crc ^ 0xFFFFFFFF


def masked(content: bytes) -> int:
    crc = crc32c(content)
    return (((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def number(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        value |= (content[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 0x80:
            return value, at


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and contents of a protocol buffer's fields."""
    at = 0
    while at < len(message):
        key, at = number(message, at)
        if key & 7 == 0:
            value, at = number(message, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(key & 7, 0)
        if key & 7 == 2:
            size, at = number(message, at)
        yield key >> 3, message[at : at + size]
        at += size


def events(path: Path) -> Iterator[dict[int, Any]]:
    """The events of a file, with all checksums checked."""
    content = path.read_bytes()
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert struct.unpack("<I", content[8:12])[0] == masked(content[:8])
        event = content[12 : 12 + length]
        assert struct.unpack("<I", content[12 + length : 16 + length])[0] == masked(event)
        yield dict(fields(event))
        content = content[16 + length :]


def scalars(event: dict[int, Any]) -> dict[str, float]:
    found = {}
    for key, value in fields(event.get(5, b"")):
        assert key == 1
        parts = dict(fields(value))
        found[parts[1].decode()] = struct.unpack("<f", parts[2])[0]
    return found


def test_the_checksum_is_that_of_the_published_example():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


class WithTests(TensorBoardLog):
    """Also reports a test after each epoch."""

    def on_epoch(self, trainer: Trainer, info: EpochInfo) -> None:
        super().on_epoch(trainer, info)
        self.on_test(trainer, Info(info.epoch, 1.0, {"p_at_1": 0.5, "rows": 7.0, "loss": 2.5}))


def train(folder: Path) -> None:
    eye = SparseRows(np.arange(13, dtype=np.int64), np.arange(12, dtype=np.int32) % 6, np.ones(12, np.float32), 6)
    config = Config(hidden=(8,), epochs=2, batch_size=4, threads=1, output="lsh")
    Trainer(config, 6, 6, callbacks=[WithTests(folder, every_seconds=0)]).fit(Dataset(eye, eye))


def test_a_run_is_there_with_its_steps_epochs_and_tests(tmp_path):
    train(tmp_path / "tb")
    (path,) = (tmp_path / "tb").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    first, start, *rest = events(path)
    assert first[3] == b"brain.Event:2"
    assert dict(fields(start[7])) == {1: 1}
    assert struct.unpack("<d", first[1])[0] > 1.6e9  # seconds since 1970
    by_step = [(event[2], scalars(event)) for event in rest]
    steps = [(step, found) for step, found in by_step if "train/loss" in found]
    assert [step for step, _ in steps] == [1, 2, 3, 4, 5, 6]
    for name in ("train/learning_rate", "train/active_neurons", "machine/rss_bytes"):
        assert all(found[name] > 0 for _, found in steps)
    assert all(found["train/samples_per_second"] > 0 for _, found in steps[1:])
    tests = [(step, found) for step, found in by_step if "test/loss" in found]
    assert tests == [(3, {"test/p_at_1": 0.5, "test/loss": 2.5}), (6, {"test/p_at_1": 0.5, "test/loss": 2.5})]
    assert [step for step, found in by_step if "epoch/loss" in found] == [3, 6]
    assert any("tables/layer1_max" in found for _, found in by_step)


def test_a_folder_that_can_not_be_made_is_reported_once_and_ends_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    train(tmp_path / "file" / "tb")
    said = capsys.readouterr().err
    assert said.count("can't be written") == 1
    assert "training continues" in said


def test_a_full_disk_is_reported_once_and_ends_nothing(tmp_path, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        train(tmp_path / "tb")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    assert said.count("can't be written: File too large") == 1
    (path,) = (tmp_path / "tb").iterdir()
    assert path.stat().st_size == 300


def test_without_tensorboardx_one_sentence_says_how_to_install_it(tmp_path):
    program = """
import sys
sys.modules["tensorboardX"] = None  # as if it were not installed
from dslide.cli import main
sys.exit(main(sys.argv[1:]))
"""
    (tmp_path / "data.txt").write_text("0 0:1\n1 1:1\n")
    words = ["train", "data.txt", "--out", "run", "--epochs", "1"]
    with_events, without = (
        subprocess.run([sys.executable, "-c", program, *words, *more], cwd=tmp_path, capture_output=True, text=True)
        for more in (["--tensorboard"], [])
    )
    assert with_events.returncode == 2
    assert with_events.stderr == (
        "dslide: error: tensorboard: the package tensorboardX is not installed; pip install 'dslide[tensorboard]'\n"
    )
    assert without.returncode == 0, without.stderr


def test_tensorboard_itself_reads_it(tmp_path):
    event_file_loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    train(tmp_path / "tb")
    (path,) = (tmp_path / "tb").iterdir()
    found = list(event_file_loader.LegacyEventFileLoader(str(path)).Load())
    losses = [event.step for event in found if any(value.tag == "train/loss" for value in event.summary.value)]
    assert losses == [1, 2, 3, 4, 5, 6]
