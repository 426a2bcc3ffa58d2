"""Fits that are runs in a folder: interrupted, killed, resumed."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.classifiers import CLASSES, SMALL, X_TEST, Y_TEST, X, Y, same, same_state

from dslide import Callback, SlideClassifier
from dslide.errors import ConfigError, DataError, ModelError


class Stop(Callback):
    """Presses Ctrl-C after some steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer: Any, info: Any) -> None:
        if info.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("output", ["full", "lsh"])
def test_an_interrupted_fit_resumes_to_the_same_bits(output: str, tmp_path: Path) -> None:
    names = np.array([f"class {n:02}" for n in range(CLASSES)])[Y[:, 0]]
    options = {**SMALL, "epochs": 3, "output": output, "rebuild_every": 7, "loss": "softmax"}
    whole = SlideClassifier(**options).fit(X, names)
    run, model = tmp_path / "run", SlideClassifier(**options)
    for stop, step in ((10, 10), (50, 50), (0, 114)):
        try:
            model.fit(X, names, out=run, callbacks=[Stop(stop)])
        except KeyboardInterrupt:
            assert stop
        assert model.trainer_.step == step
        same(SlideClassifier.load(run), model, X_TEST)  # the run is a model of the estimator
    same_state(model, whole)
    same(model, whole, X_TEST)
    assert {path.name for path in run.iterdir()} == {"checkpoints", "log.jsonl", "summary.json"}
    again = SlideClassifier(**options).fit(X, names, out=run)  # nothing is left to do
    same_state(again, whole)
    assert again.n_iter_ == 3


def test_a_killed_fit_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """Killed after a checkpoint was written in the background, and before the next."""
    program = """
import os, pickle, signal, sys, time
from dslide import Callback, SlideClassifier
class Kill(Callback):
    done = 0
    def on_checkpoint(self, trainer, step):
        self.done = trainer.step
    def on_step(self, trainer, info):
        if self.done and info.step > self.done + 5:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)
options, x, y = pickle.load(open(sys.argv[1], "rb"))
SlideClassifier(**options, checkpoint_seconds=0.05).fit(x, y, out=sys.argv[2], callbacks=[Kill()])
"""
    options, run = {**SMALL, "epochs": 10}, tmp_path / "run"
    (tmp_path / "given").write_bytes(pickle.dumps((options, X, Y[:, 0])))
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "given"), str(run)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (run / "summary.json").exists()
    model = SlideClassifier(**options).fit(X, Y[:, 0], out=run)
    starts = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines() if '"start"' in line]
    assert [start["step"] > 0 for start in starts] == [False, True]  # the second start resumed
    same_state(model, SlideClassifier(**options).fit(X, Y[:, 0]))


def test_other_data_and_other_options_are_not_resumed(tmp_path: Path) -> None:
    run, model = tmp_path / "run", SlideClassifier(**SMALL, epochs=1)
    model.fit(X, Y[:, 0], out=run)
    with pytest.raises(DataError, match=f"not the data that {run} was trained on"):
        model.fit(X_TEST, Y_TEST[:, 0], out=run)
    with pytest.raises(
        ConfigError, match="seed: the run was begun with 0, and on resuming only epochs, patience, learning_rate"
    ):
        SlideClassifier(**SMALL, epochs=1, seed=1).fit(X, Y[:, 0], out=run)
    model.set_params(epochs=2).fit(X, Y[:, 0], out=run)  # more epochs are welcome
    assert (model.n_iter_, model.trainer_.step) == (2, 76)
    with pytest.raises(ModelError, match="classes of type object can't be saved"):
        SlideClassifier(**SMALL).fit(X[:2], np.array([1, 2], object), out=tmp_path / "other")
