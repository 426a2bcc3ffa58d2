"""The memory that a run is planned to take, and the memory that it takes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dslide.config import Config
from dslide.data import DenseRows, load
from dslide.planner.memory import plan

# Rows of many features, so that copies of rows are most of the memory: for the counting of the label prior, and for
# linear classifiers.
WIDE_ROWS = """
import sys
import numpy as np
import dslide
from dslide.data import Dataset, SparseRows

rows, width, features, labels = 8000, 1000, 4000, 60
rng = np.random.default_rng(0)
indptr = np.arange(rows + 1, dtype=np.int64)
starts = rng.integers(0, features - width, rows, dtype=np.int32)
x = SparseRows(
    indptr * width, (starts[:, None] + np.arange(width, dtype=np.int32)).ravel(), np.ones(rows * width, np.float32),
    features,
)
y = SparseRows(indptr, (starts * labels // features).astype(np.int32), np.ones(rows, np.float32), labels)
config = dslide.Config(hidden=(8,), epochs=1, threads=2)
dslide.train(Dataset(x, y), config, out=sys.argv[1])
"""


def summary_of(program: str, run: Path) -> dict[str, Any]:
    """The summary of a run that the program makes in a process of its own."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of memory is read from /proc")
    done = subprocess.run([sys.executable, "-c", program, str(run)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def test_rows_of_many_features_take_what_was_planned(tmp_path: Path) -> None:
    summary = summary_of(WIDE_ROWS, tmp_path / "run")
    data = 8000 * 1000 * 8
    assert summary["peak_rss_bytes"] > 3 * data  # the data, and copies of it
    assert summary["peak_rss_bytes"] < summary["planned_bytes"] < 1.25 * summary["peak_rss_bytes"]


# Few rows and very many labels, each in a few of them: as if the columns of a file of text were swapped.
MANY_LABELS = """
import sys
import numpy as np
import dslide
from dslide.data import Dataset, SparseRows

rows, per_row, features, labels = 4000, 40, 500, 60_000
rng = np.random.default_rng(0)
x = SparseRows.from_scipy(np.eye(features, dtype=np.float32)[rng.integers(features, size=rows)])
indices = (rng.integers(labels // per_row, size=(rows, per_row)) * per_row + np.arange(per_row)).astype(np.int32)
indptr = np.arange(rows + 1, dtype=np.int64) * per_row
y = SparseRows(indptr, np.sort(indices).ravel(), np.ones(indices.size, np.float32), labels)
dslide.train(Dataset(x, y), dslide.Config(hidden=(64,), epochs=1, threads=2, checkpoint_seconds=0), out=sys.argv[1])
"""


def test_many_labels_of_few_rows_take_no_more_than_was_planned(tmp_path: Path) -> None:
    summary = summary_of(MANY_LABELS, tmp_path / "run")
    assert summary["peak_rss_bytes"] < summary["planned_bytes"] < 1.25 * summary["peak_rss_bytes"]


def test_the_loss_over_all_labels_takes_memory_when_linear_classifiers_take_none() -> None:
    """It is evaluated on test data, when training has ended."""
    size = {"rows": 100_000, "features_per_row": 50.0, "labels_per_row": 2.0, "threads": 1}
    config = Config(hidden=(16,), prior_labels=8, loss="sigmoid", validation=0.01)
    with_linear, alone = (
        plan(config.replace(linear_negatives=negatives), 5_000, 100_000, **size).parts for negatives in (32, 0)
    )
    assert with_linear["linear classifiers"] > alone["counting the label prior"] + alone["loss over all labels"] > 0
    assert with_linear["loss over all labels"] == with_linear["counting the label prior"] == 0


def test_counting_and_linear_classifiers_do_not_take_memory_at_the_same_time() -> None:
    size = {"rows": 100_000, "features_per_row": 500.0, "labels_per_row": 2.0, "threads": 1}
    config = Config(hidden=(16,), prior_labels=8)
    both = plan(config.replace(linear_negatives=32, validation=0.01), 50_000, 5_000, **size).parts
    counted = plan(config.replace(linear_negatives=0, validation=0.0), 50_000, 5_000, **size).parts
    assert counted["linear classifiers"] == 0
    assert counted["counting the label prior"] > 8 * 100_000 * 500
    together = both["linear classifiers"] + both["counting the label prior"]
    assert together == max(both["linear classifiers"], counted["counting the label prior"])


def test_dense_features_take_what_they_take_in_memory(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2000, 96)).astype(np.float16)
    np.save(tmp_path / "X.npy", x)
    np.save(tmp_path / "Y.npy", np.arange(2000) % 7)
    mapped = load(tmp_path / "X.npy")
    held = dataclasses.replace(mapped, x=DenseRows(x))
    labels = mapped.y.memory_bytes
    assert (held.data_bytes, mapped.data_bytes) == (x.nbytes + labels, labels)
    split = held.split(0.1, 0)[0]
    assert split.data_bytes < held.data_bytes + 8 * 2000  # numbers of rows, and no copy
    sizes = [plan(Config(hidden=(64,)), 5000, 9, dense_features=dense).parts["work space"] for dense in (0, 5000)]
    batch, packed = 8 * 256 * 5008, 4 * 2 * 5000 * (64 + 64)
    assert sizes[1] - sizes[0] == pytest.approx(batch + packed, rel=0.05)
