"""Ranks that train while their checkpoints are written in the background. Under the thread sanitizer
(tests/sanitize.sh thread), in which a data race in the core ends the test."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inprocess import run_ranks

import dslide
from dslide.checkpoint import saved_model
from dslide.comm import Communicator

OPTIONS: dict[str, Any] = {"hidden": (8,), "output": "lsh", "threads": 2, "validation": 0.0, "batch_size": 16}
EPOCHS, RANKS = 4, 2


@pytest.fixture
def data(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    path = tmp_path / "data.txt"
    rows = [[*random.integers(0, 60, 2), *sorted(random.choice(200, 4, replace=False))] for _ in range(400)]
    path.write_text("".join(f"{a},{b} " + " ".join(f"{f}:1" for f in features) + "\n" for a, b, *features in rows))
    return path


def weights(run: Path) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in dslide.load_model(run).state.items()}


def test_ranks_save_in_the_background_while_they_train(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they save and whenever, they train the same network."""
    written: list[str] = []  # threads that wrote arrays
    write = saved_model.write_shard

    def noted(*arguments: Any, **options: Any) -> Any:
        written.append(threading.current_thread().name)
        return write(*arguments, **options)

    def train(name: str, seconds: float) -> dict[str, np.ndarray]:
        def work(comm: Communicator) -> None:
            run = tmp_path / name
            dslide.train(data, out=run, comm=comm, epochs=EPOCHS, checkpoint_seconds=seconds, **OPTIONS)

        run_ranks(RANKS, work)
        return weights(tmp_path / name)

    monkeypatch.setattr("dslide.checkpoint.manager.write_shard", noted)
    alone = train("alone", 0.0)
    at_the_end = len(written)
    saved = train("saved", 1e-3)
    assert len(written) > 2 * at_the_end
    assert set(written) == {"dslide-checkpoint"}
    assert set(saved) == set(alone)
    for name, array in alone.items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)
