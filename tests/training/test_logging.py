"""The progress line and the log, driven by a real, tiny training run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

import dslide
from dslide.config import Config
from dslide.data import Dataset, SparseRows
from dslide.model.defaults import resolve
from dslide.training.callbacks import Callback
from dslide.training.logging import JsonLog, ProgressLine, clock, finite
from dslide.training.trainer import Trainer

CONFIG = Config(hidden=(8,), epochs=2, batch_size=4, threads=1)
EYE = SparseRows(np.arange(13, dtype=np.int64), np.arange(12, dtype=np.int32) % 6, np.ones(12, np.float32), 6)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def train(*callbacks: Callback, config: Config = CONFIG) -> None:
    Trainer(config, 6, 6, callbacks=callbacks).fit(Dataset(EYE, EYE))


def test_a_line_per_epoch_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    train(ProgressLine(stream))
    lines = stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all("samples/s" in line and "loss" in line for line in lines)
    assert "\r" not in stream.getvalue()


def test_a_terminal_gets_a_line_that_is_redrawn_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dslide.training.logging.REDRAW_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    train(ProgressLine(stream))
    drawn = [line for line in stream.getvalue().split("\r") if line.startswith("epoch") and "[" in line[:14]]
    assert len(drawn) == 6  # 12 rows, 4 in a step, 2 epochs
    assert drawn[0].startswith("epoch 1/2 [###-----------------]  17%  loss ")
    assert drawn[-1].startswith("epoch 2/2 [####################] 100%  loss ")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_narrow_terminal_is_not_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dslide.training.logging.REDRAW_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    train(ProgressLine(stream))
    bars = [line.removesuffix("\x1b[K") for line in stream.getvalue().split("\r") if line.startswith("epoch")]
    assert bars
    assert max(map(len, bars)) < 30


def test_a_launcher_may_stand_between_the_process_and_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dslide.training.logging.REDRAW_SECONDS", 0.0)
    monkeypatch.setenv("DSLIDE_TERMINAL", "40")
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    train(ProgressLine())
    bars = [line.removesuffix("\x1b[K") for line in stream.getvalue().split("\r") if line.startswith("epoch")]
    assert [len(bar) for bar in bars] == [39] * 6


def test_without_progress_a_run_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, terminal in enumerate((io.StringIO, Terminal)):
        for progress in (False, True):
            stream = terminal()
            monkeypatch.setattr("sys.stderr", stream)
            dslide.train(Dataset(EYE, EYE), CONFIG, out=tmp_path / f"{number}{progress}", progress=progress)
            assert ("epoch 1/2" in stream.getvalue()) == progress == (stream.getvalue() != "")


def test_the_log_has_the_whole_run(tmp_path: Path) -> None:
    train(JsonLog(tmp_path / "log.jsonl", every_seconds=0))
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    kinds = [record["record"] for record in records]
    assert kinds == ["start", *["step"] * 3, "epoch", *["step"] * 3, "epoch", "end"]
    steps = [record for record in records if record["record"] == "step"]
    assert [step["samples"] for step in steps] == [4, 8, 12, 16, 20, 24]
    assert [step["epoch"] for step in steps] == [1, 1, 1, 2, 2, 2]
    assert 0 < steps[0]["seconds"] <= steps[-1]["seconds"] <= records[-1]["seconds"] + 0.001
    assert all(step["rss_bytes"] > 1e6 and step["bytes_sent"] == step["waited"] == 0 for step in steps)
    assert records[0]["config"] == resolve(CONFIG, 6).to_dict()
    assert (records[0]["features"], records[0]["labels"], records[0]["total_steps"]) == (6, 6, 6)
    assert set(records[0]["versions"]) == {"dslide", "numpy", "python"}
    assert [r["step"] for r in records if r["record"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert [r["epoch"] for r in records if r["record"] == "epoch"] == [1, 2]
    assert records[-1]["interrupted"] is False


def test_the_log_is_appended_to_and_thinned_by_time(tmp_path: Path) -> None:
    for _ in range(2):
        train(JsonLog(tmp_path / "log.jsonl", every_seconds=1e9))
    kinds = [json.loads(line)["record"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert kinds == ["start", "step", "epoch", "epoch", "step", "end"] * 2  # the first step and the last


def test_occupancy_of_hash_tables_is_logged_once_after_each_rebuild(tmp_path: Path) -> None:
    config = CONFIG.replace(output="lsh", rebuild_every=4, rebuild_growth=1.0, bucket_size=0)
    train(JsonLog(tmp_path / "log.jsonl", every_seconds=0, about={"data": "mine"}), config=config)
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert records[0]["data"] == "mine"
    tables = [record for record in records if record["record"] == "tables"]
    assert [(table["layer"], table["step"]) for table in tables] == [("layer1", 1), ("layer1", 5)]
    assert all(sum(table["by_size"]) % 6 == 0 and sum(table["by_size"]) > 0 for table in tables)  # 6 in each table


def test_what_cells_find_is_logged_once_after_each_rebuild(tmp_path: Path) -> None:
    config = CONFIG.replace(output="cells", rebuild_every=2, rebuild_growth=1.0)
    train(JsonLog(tmp_path / "log.jsonl", every_seconds=0), config=config)
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    found = [record for record in records if record["record"] == "retrieval"]
    assert [record["step"] for record in found] == [3, 5]
    assert all(record["recall"] == 1 for record in found)  # cells have all of the few labels
    assert all(0 < record["largest"] <= 1 <= record["cells"] for record in found)


def test_what_a_crash_left_of_a_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"record": "start"}\n{"rec')
    train(JsonLog(log, every_seconds=1e9))
    lines = log.read_text().splitlines()
    assert lines[:2] == ['{"record": "start"}', '{"rec']
    assert [json.loads(line)["record"] for line in lines[2:4]] == ["start", "step"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1:00"), (754.4, "12:34"), (3723, "1:02:03")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_numbers_that_json_lacks_become_null() -> None:
    assert finite({"a": {"b": float("nan")}, "c": float("inf"), "d": 1.5}) == {
        "a": {"b": None},
        "c": None,
        "d": 1.5,
    }


def test_a_log_that_can_not_be_written_is_reported_once_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(JsonLog(tmp_path / "none" / "log.jsonl", every_seconds=0))
    said = capsys.readouterr().err
    assert said.startswith(f"dslide: warning: {tmp_path}/none/log.jsonl: can't be written: No such file or directory")
    assert said.count("\n") == 1
