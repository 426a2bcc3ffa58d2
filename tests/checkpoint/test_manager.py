"""Checkpoints: written while training runs, without changing it; training resumes from any of them, bit for bit."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.inprocess import run_ranks
from support.plain import PLAIN
from support.planted import prototypes

import dslide.checkpoint.manager
import dslide.checkpoint.snapshot
from dslide import Config, Trainer, load_model
from dslide.checkpoint.collective_load import load_on_all_ranks
from dslide.checkpoint.manager import name_latest
from dslide.checkpoint.run_folder import checkpoints, newest
from dslide.checkpoint.saved_model import SavedModel
from dslide.comm import solo
from dslide.comm.votes import Vote
from dslide.errors import Diverged, ModelError
from dslide.training.run import Checkpointing
from dslide.training.trainer import Callback

PROBLEM = prototypes(labels=300, features=200)
MODES = {
    "lsh": {"output": "lsh", "hash_hits": 2, "random_negatives": 32},
    "lsh by row": {"output": "lsh", "active_sets": "row", "hash_hits": 8, "random_negatives": 8},
    "random": {"output": "random", "random_negatives": 32},
    "full": {"output": "full"},
    "sigmoid": {"output": "full", "loss": "sigmoid"},
    "sampled hidden": {"output": "lsh", "hidden": (16, 64), "hidden_share": (1.0, 0.25)},
    "adagrad and label prior": {"output": "lsh", "optimizer": "adagrad", "learning_rate": 0.05, "prior_labels": 8},
    "trained label prior": {
        "output": "random",
        "random_negatives": 32,
        "prior_labels": 8,
        "prior_learning_rate": 1.0,
        "prior_hits": 2,
    },
    "bf16 and dropout": {"output": "lsh", "weights": "bf16", "moments": "bf16", "dropout_input": 0.2},
}


def a_config(**options) -> Config:
    return Config(
        **PLAIN | {"hidden": (16,), "epochs": 2, "batch_size": 32, "rebuild_every": 4, "threads": 2} | options
    )


def begin(run: Path, config: Config, comm=None, seconds=0.0, kept=10**6, warnings=None, last=None):
    """A trainer, and the manager of the checkpoints of its run."""
    config = config.replace(checkpoint_seconds=seconds, checkpoints_kept=kept)
    trainer = Trainer(config, PROBLEM.train.features, PROBLEM.train.labels, comm=comm)

    def model() -> SavedModel:
        network = trainer.network
        names = [f"label {i}" for i in range(network.labels)]
        return SavedModel(
            network.config, network.features, network.labels, network.state(), names, progress=trainer.progress()
        )

    checkpointing = Checkpointing(trainer, run, model, [].append if warnings is None else warnings.append, last)
    trainer.callbacks.append(checkpointing)
    return trainer, checkpointing.manager


def resume(folder: Path, config: Config, comm=None) -> Trainer:
    """A trainer that resumed from a checkpoint and trained to the end."""
    saved = load_on_all_ranks(folder, comm or solo(), optimizer=True, verify=True)
    trainer = Trainer(config, PROBLEM.train.features, PROBLEM.train.labels, comm=comm)
    trainer.network.load_state(saved.state)
    trainer.load_progress(saved.progress)
    trainer.fit(PROBLEM.train)
    return trainer


def state_of(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in trainer.network.state().items()}


class Patient(Callback):
    """Completes some checkpoints in a short run: after every fourth step it waits for the present stage."""

    def __init__(self, manager):
        self.manager = manager

    def on_step(self, trainer, info):
        end = time.monotonic() + 20
        while info.step % 4 == 0 and self.manager.vote() == Vote.NONE and time.monotonic() < end:
            time.sleep(0.001)


@pytest.fixture
def slow_disk(monkeypatch):
    """Writing takes many steps of training, in small blocks."""
    pieces = dslide.checkpoint.manager.finite_pieces

    def slowly(name, given):
        for piece in pieces(name, given):
            time.sleep(0.0005)
            yield piece

    monkeypatch.setattr(dslide.checkpoint.snapshot, "BLOCK", 4096)
    monkeypatch.setattr(dslide.checkpoint.manager, "finite_pieces", slowly)


@pytest.mark.parametrize("mode", MODES)
def test_training_resumes_from_any_checkpoint_bit_for_bit(tmp_path, slow_disk, mode):
    config = a_config(**MODES[mode])
    whole = Trainer(config, PROBLEM.train.features, PROBLEM.train.labels)
    whole.fit(PROBLEM.train)
    expected = state_of(whole)
    trainer, manager = begin(tmp_path / "run", config, seconds=1e-9)
    trainer.callbacks.append(Patient(manager))
    trainer.fit(PROBLEM.train)
    manager.save()
    found = checkpoints(tmp_path / "run")
    assert list(found)[-1] == trainer.step
    assert len(found) >= 2
    assert newest(tmp_path / "run") == manager.last == list(found.values())[-1]
    for steps, folder in found.items():
        other = resume(folder, config)
        assert set(other.network.state()) == set(expected), steps
        for name, array in other.network.state().items():
            assert_array_equal(array, expected[name], strict=True, err_msg=f"{name} after {steps}")


def test_a_step_is_in_a_checkpoint_whole_or_not_at_all(tmp_path, slow_disk, monkeypatch):
    """With a tiny copy-on-write buffer training waits, and the same is written."""
    monkeypatch.setattr(dslide.checkpoint.manager, "buffer_bytes", lambda size: 4096)
    config = a_config(**MODES["lsh"])
    trainer, manager = begin(tmp_path / "run", config, seconds=1e-9)
    trainer.callbacks.append(Patient(manager))
    trainer.fit(PROBLEM.train)
    manager.save()
    expected = state_of(trainer)
    for folder in checkpoints(tmp_path / "run").values():
        for name, array in resume(folder, config).network.state().items():
            assert_array_equal(array, expected[name], strict=True, err_msg=name)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_make_checkpoints_together(tmp_path, slow_disk, ranks):
    config = a_config(**MODES["lsh"], threads=1)

    def train(comm):
        trainer, manager = begin(tmp_path / "run", config, comm, seconds=1e-9)
        if comm.rank == 0:
            trainer.callbacks.append(Patient(manager))
        trainer.fit(PROBLEM.train)
        manager.save()
        return state_of(trainer)

    expected = run_ranks(ranks, train)
    found = checkpoints(tmp_path / "run")
    assert len(found) >= 2
    first = next(iter(found.values()))
    assert (first / f"weights-1-of-{ranks}.safetensors").exists()
    again = run_ranks(ranks, lambda comm: state_of(resume(first, config, comm)))
    for one, other in zip(again, expected, strict=True):
        for name, array in one.items():
            assert_array_equal(array, other[name], strict=True, err_msg=name)


def test_old_checkpoints_and_remains_of_a_crash_are_removed(tmp_path):
    left = tmp_path / "run/checkpoints/step-000000001"
    left.mkdir(parents=True)
    (left / "weights.safetensors").write_bytes(b"half")
    later = tmp_path / "run/checkpoints/step-999999999"  # other disks may have its files
    later.mkdir()
    trainer, manager = begin(tmp_path / "run", a_config(), seconds=1e-9, kept=2)
    trainer.callbacks.append(Patient(manager))
    trainer.fit(PROBLEM.train)
    manager.save()
    assert len(checkpoints(tmp_path / "run")) == 2
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert names == ["latest", *(path.name for path in checkpoints(tmp_path / "run").values()), later.name]
    load_model(tmp_path / "run", optimizer=True, verify=True)


def test_files_that_do_not_change_are_written_twice(tmp_path):
    """Not once: damage in one checkpoint is not in the one before it."""
    trainer, manager = begin(tmp_path / "run", a_config(), seconds=1e-9, kept=3)
    trainer.callbacks.append(Patient(manager))
    trainer.fit(PROBLEM.train)
    manager.save()
    first, second, third = list(checkpoints(tmp_path / "run").values())[:3]
    assert os.path.samefile(first / "labels.json", third / "labels.json")
    assert not os.path.samefile(first / "labels.json", second / "labels.json")
    assert not os.path.samefile(first / "progress.json", third / "progress.json")
    shutil.rmtree(first)
    assert load_model(third).label_names == [f"label {i}" for i in range(300)]
    *_, before, newest = sorted(checkpoints(tmp_path / "run").values())
    (newest / "labels.json").write_bytes(b"[" * (newest / "labels.json").stat().st_size)
    with pytest.raises(ModelError, match=r"labels\.json: damaged"):
        load_model(newest, verify=True)
    assert load_model(before, verify=True).label_names == [f"label {i}" for i in range(300)]


class At(Callback):
    """Does something after a step."""

    def __init__(self, step, work):
        self.step, self.work = step, work

    def on_step(self, trainer, info):
        if info.step == self.step:
            self.work(trainer)


def test_a_checkpoint_that_can_not_be_written_is_reported_and_training_continues(tmp_path):
    warnings: list[str] = []
    trainer, manager = begin(tmp_path / "run", a_config(epochs=4), seconds=1e-9, warnings=warnings)
    trainer.callbacks.append(Patient(manager))
    folder = tmp_path / "run/checkpoints"

    def block(_):
        folder.rename(tmp_path / "moved")
        folder.touch()  # no folder can be made in it

    def clear(_):
        folder.unlink()
        (tmp_path / "moved").rename(folder)

    trainer.callbacks += [At(20, block), At(40, clear)]
    result = trainer.fit(PROBLEM.train)
    assert not result.interrupted
    assert warnings
    assert "the checkpoint can't be written" in warnings[0]
    assert "training continues, and the last checkpoint is" in warnings[0]
    manager.save()
    assert newest(tmp_path / "run") == manager.last
    assert load_model(tmp_path / "run", optimizer=True, verify=True).progress["step"] == trainer.step


def test_a_full_disk_costs_no_checkpoint_of_an_earlier_start(tmp_path):
    """A run at its end is started again, and there is no disk space to save what is saved already."""
    trainer, manager = begin(tmp_path / "run", a_config())
    trainer.fit(PROBLEM.train)
    manager.save()
    again, other = begin(tmp_path / "run", a_config())
    saved = load_model(tmp_path / "run", optimizer=True)
    again.network.load_state(saved.state)
    again.load_progress(saved.progress)
    assert again.step == trainer.step
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ModelError, match="File too large"):
            other.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load_model(tmp_path / "run", optimizer=True, verify=True).progress["step"] == trainer.step


def test_the_checkpoint_that_training_resumed_from_is_not_saved_again(tmp_path):
    trainer, manager = begin(tmp_path / "run", a_config())
    trainer.fit(PROBLEM.train)
    manager.save()
    written = (manager.last / "weights.safetensors").stat().st_mtime_ns
    again, other = begin(tmp_path / "run", a_config(), last=manager.last)
    again.load_progress(trainer.progress())
    other.save()
    assert (manager.last / "weights.safetensors").stat().st_mtime_ns == written
    assert other.last_in_words() == f"the last checkpoint is {manager.last}"


def test_ranks_abandon_a_checkpoint_together(tmp_path):
    """Writing fails on the disk of one rank."""
    warnings: list[str] = []

    def train(comm):
        run = tmp_path / f"disk{comm.rank}"
        trainer, manager = begin(run, a_config(threads=1), comm, warnings=warnings)
        if comm.rank == 1:
            (run / "checkpoints").rmdir()
            (run / "checkpoints").touch()
        trainer.fit(PROBLEM.train)
        with pytest.raises(ModelError, match=r"rank 1: .*step-.*can't be written") as caught:
            manager.save()
        assert caught.value.collective

    run_ranks(2, train)
    assert not list((tmp_path / "disk0/checkpoints").iterdir())


@pytest.mark.parametrize("weights", ["float32", "bf16"])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, weights):
    """A neuron that is active in no row has weights that are not finite: gradients don't show that."""
    trainer, manager = begin(tmp_path / "run", a_config(output="random", random_negatives=1, weights=weights))

    def spoil(trainer):
        stored = trainer.network.output.arrays["weights"]
        stored[7] = np.nan if weights == "float32" else 0x7F80

    trainer.fit(PROBLEM.train)
    manager.save()
    good = manager.last
    trainer.step += 1
    spoil(trainer)
    with pytest.raises(Diverged, match=r"layer1: weights not finite at step \d+ with learning rate \S+$"):
        manager.save()
    assert newest(tmp_path / "run") == good


def test_a_pending_checkpoint_is_abandoned_when_the_run_ends(tmp_path, slow_disk):
    """Not its own step's: that one is finished instead."""
    trainer, manager = begin(tmp_path / "run", a_config(epochs=1), seconds=1e-9)
    trainer.fit(PROBLEM.train)
    manager.save()
    assert newest(tmp_path / "run").name == f"step-{trainer.step:09}"
    assert not [layer for layer in trainer.network.layers if layer.listener]
    manager.save()  # again: there is nothing to do
    names = {path.name for path in (tmp_path / "run/checkpoints").iterdir()}
    assert names == {"latest", *(path.name for path in checkpoints(tmp_path / "run").values())}


def test_the_newest_checkpoint_is_the_one_that_latest_names(tmp_path):
    assert newest(tmp_path) is None
    for step in (3, 20):
        folder = tmp_path / f"checkpoints/step-{step:09}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    (tmp_path / "checkpoints/step-000000100").mkdir()  # not complete
    assert newest(tmp_path).name == "step-000000020"
    name_latest(tmp_path / "checkpoints", "step-000000003")
    assert newest(tmp_path).name == "step-000000003"
    (tmp_path / "checkpoints/latest").write_text("../../elsewhere")
    assert newest(tmp_path).name == "step-000000020"


@pytest.mark.parametrize(("wrote", "reads"), [(1, 4), (4, 3), (3, 1)])
def test_any_number_of_ranks_reads_hash_tables(tmp_path, wrote, reads):
    config = a_config(**MODES["lsh"], threads=1)

    def write(comm):
        trainer, manager = begin(tmp_path / "run", config, comm)
        trainer.fit(PROBLEM.train)
        manager.save()
        return trainer.network.output.lsh.tables.codes.copy()

    written = run_ranks(wrote, write)

    def read(comm):
        state = load_on_all_ranks(tmp_path / "run", comm, optimizer=True).state
        return np.array(state["layer1.codes"])

    whole = np.empty((len(written[0]), 300), np.uint32)
    for rank, codes in enumerate(written):
        whole[:, rank::wrote] = codes
    for rank, codes in enumerate(run_ranks(reads, read)):
        assert_array_equal(codes, whole[:, rank::reads])


def test_a_manifest_lists_every_file(tmp_path):
    trainer, manager = begin(tmp_path / "run", a_config(epochs=1))
    trainer.fit(PROBLEM.train)
    manager.save()
    folder = newest(tmp_path / "run")
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    assert {path.name for path in folder.iterdir()} == {*listed, "manifest.json"}
