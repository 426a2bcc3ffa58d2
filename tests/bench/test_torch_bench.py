"""`python -m bench.torch`: every system trains, and learns something."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from bench.torch.__main__ import SYSTEMS
from bench.torch.data import ROW, make_words
from bench.torch.systems import Model, fit, speed


@pytest.fixture(autouse=True)
def _denormal_numbers_again() -> Iterator[None]:
    """The benchmark flushes them in its own process, which here is that of all tests."""
    yield
    torch.set_flush_denormal(False)


def test_words_tell_labels_apart() -> None:
    some, others = make_words(1000, 50, 300, 1), make_words(1000, 50, 300, 2)
    assert some.words.shape == (300, ROW)
    assert some.labels.max() < 50
    words = {label: set(some.words[some.labels == label].ravel()) for label in range(50)}
    shared = [len(words[label] & set(row)) for row, label in zip(others.words, others.labels, strict=True)]
    assert sum(shared) / len(shared) > 4


@pytest.mark.parametrize("system", [each for each in SYSTEMS if "compiled" not in each[2]], ids=lambda each: each[0])
def test_systems_learn(system: tuple) -> None:
    _, kind, options, _ = system
    torch.manual_seed(0)
    made = make_words(1000, 60, 64, 0)
    words, labels = torch.from_numpy(made.words), torch.from_numpy(made.labels)
    model = Model(kind, 60, 0.05, torch.bincount(labels, minlength=60), options)
    losses = [model.step(words, labels) for _ in range(8)]
    assert losses[-1] < 0.7 * losses[0]
    assert (model.output.best(model.hidden(words)) == labels).float().mean() > 0.5


# In a process of its own, which ends at once: a process group of gloo may wait for ever when Python frees it.
ONE_RANK = """
import os, sys, torch
from bench.torch.cluster import TorchRank
rank = TorchRank(sys.argv[1], 5000, 0, {})
before = next(rank._model.encoder.parameters()).detach().clone()
assert rank.step() == 256
assert not torch.equal(before, next(rank._model.encoder.parameters()))
assert rank.gather(3.0) == [3.0]
print("done", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["dslide", "full", "sampled"])
def test_a_rank_trains_and_can_do_without_exchanges(kind: str) -> None:
    port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # any that is free
    command = [sys.executable, "-c", ONE_RANK, kind]
    run = subprocess.run(command, env=os.environ | port, capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout == "done\n", run.stderr


def test_speed_and_accuracy_are_measured() -> None:
    found = speed("dslide", 500, torch.get_num_threads(), 0.05, 0)
    assert found["samples_per_second"] > 0
    assert 0.05 < found["peak_gigabytes"] < 4
    assert fit("dslide", 20, 512, 1, [0.0, 0.2], torch.get_num_threads(), 0)["p_at_1"] > 0.1  # by chance 0.05
