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
from dslide.checkpoint.collective_load import load_together
from dslide.checkpoint.manager import CheckpointManager, name_latest
from dslide.checkpoint.run_folder import checkpoints, newest
from dslide.checkpoint.saved_model import SavedModel
from dslide.comm import solo
from dslide.errors import Diverged, ModelError
from dslide.training.trainer import Callback

PROBLEM = prototypes(labels=300, features=200)
MODES = {
    "lsh": {"output": "lsh", "hash_hits": 2, "random_negatives": 32},
    "lsh by row": {"output": "lsh", "active_sets": "row", "hash_hits": 8, "random_negatives": 8},
    "random": {"output": "random", "random_negatives": 32},
    "full": {"output": "full"},
    "sigmoid": {"output": "full", "loss": "sigmoid"},
    "sampled hidden": {"output": "lsh", "hidden": (16, 64), "hidden_share": (1.0, 0.25)},
    "adagrad and links": {"output": "lsh", "optimizer": "adagrad", "learning_rate": 0.05, "prior_labels": 8},
    "bf16 and dropout": {"output": "lsh", "weights": "bf16", "moments": "bf16", "dropout_input": 0.2},
}


def a_config(**options) -> Config:
    return Config(
        **PLAIN | {"hidden": (16,), "epochs": 2, "batch_size": 32, "rebuild_every": 4, "threads": 2} | options
    )


def begin(run: Path, config: Config, comm=None, seconds=0.0, kept=10**6, told=None, last=None):
    """A trainer and the checkpoints of its run."""
    comm = comm or solo()
    trainer = Trainer(config, PROBLEM.train.features, PROBLEM.train.labels, comm=comm)

    def model() -> SavedModel:
        network = trainer.network
        names = [f"label {i}" for i in range(network.labels)]
        return SavedModel(
            network.config, network.features, network.labels, network.state(), names, progress=trainer.progress()
        )

    tell = (lambda words: None) if told is None else told.append
    keeper = CheckpointManager(run, comm, model, seconds, kept, tell, last)
    trainer.callbacks.append(keeper)
    return trainer, keeper


def go_on(folder: Path, config: Config, comm=None) -> Trainer:
    """A trainer that took up a checkpoint and trained to the end."""
    saved = load_together(folder, comm or solo(), optimizer=True, verify=True)
    trainer = Trainer(config, PROBLEM.train.features, PROBLEM.train.labels, comm=comm)
    trainer.network.load_state(saved.state)
    trainer.load_progress(saved.progress)
    trainer.fit(PROBLEM.train)
    return trainer


def state_of(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in trainer.network.state().items()}


class Unhurried(Callback):
    """Lets some checkpoints be completed in a short run: after some steps each part of one is waited for."""

    def __init__(self, keeper):
        self.keeper = keeper

    def on_step(self, trainer, info):
        end = time.monotonic() + 20
        while info.step % 4 == 0 and self.keeper.vote(trainer) == 0 and time.monotonic() < end:
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
def test_training_goes_on_from_any_checkpoint_bit_for_bit(tmp_path, slow_disk, mode):
    config = a_config(**MODES[mode])
    whole = Trainer(config, PROBLEM.train.features, PROBLEM.train.labels)
    whole.fit(PROBLEM.train)
    expected = state_of(whole)
    trainer, keeper = begin(tmp_path / "run", config, seconds=1e-9)
    trainer.callbacks.append(Unhurried(keeper))
    trainer.fit(PROBLEM.train)
    keeper.save(trainer)
    found = checkpoints(tmp_path / "run")
    assert list(found)[-1] == trainer.step
    assert len(found) >= 2
    assert newest(tmp_path / "run") == keeper.last == list(found.values())[-1]
    for steps, folder in found.items():
        other = go_on(folder, config)
        assert set(other.network.state()) == set(expected), steps
        for name, array in other.network.state().items():
            assert_array_equal(array, expected[name], strict=True, err_msg=f"{name} after {steps}")


def test_a_step_is_in_a_checkpoint_whole_or_not_at_all(tmp_path, slow_disk, monkeypatch):
    """With hardly any room to put rows aside training waits, and what is written is the same."""
    monkeypatch.setattr(dslide.checkpoint.manager, "room", lambda size: 4096)
    config = a_config(**MODES["lsh"])
    trainer, keeper = begin(tmp_path / "run", config, seconds=1e-9)
    trainer.callbacks.append(Unhurried(keeper))
    trainer.fit(PROBLEM.train)
    keeper.save(trainer)
    expected = state_of(trainer)
    for folder in checkpoints(tmp_path / "run").values():
        for name, array in go_on(folder, config).network.state().items():
            assert_array_equal(array, expected[name], strict=True, err_msg=name)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_make_checkpoints_together(tmp_path, slow_disk, ranks):
    config = a_config(**MODES["lsh"], threads=1)

    def train(comm):
        trainer, keeper = begin(tmp_path / "run", config, comm, seconds=1e-9)
        if comm.rank == 0:
            trainer.callbacks.append(Unhurried(keeper))
        trainer.fit(PROBLEM.train)
        keeper.save(trainer)
        return state_of(trainer)

    expected = run_ranks(ranks, train)
    found = checkpoints(tmp_path / "run")
    assert len(found) >= 2
    first = next(iter(found.values()))
    assert (first / f"weights-1-of-{ranks}.safetensors").exists()
    again = run_ranks(ranks, lambda comm: state_of(go_on(first, config, comm)))
    for one, other in zip(again, expected, strict=True):
        for name, array in one.items():
            assert_array_equal(array, other[name], strict=True, err_msg=name)


def test_old_checkpoints_go_and_what_a_crash_left(tmp_path):
    left = tmp_path / "run/checkpoints/step-000000001"
    left.mkdir(parents=True)
    (left / "weights.safetensors").write_bytes(b"half")
    later = tmp_path / "run/checkpoints/step-999999999"  # other disks may have the rest of it
    later.mkdir()
    trainer, keeper = begin(tmp_path / "run", a_config(), seconds=1e-9, kept=2)
    trainer.callbacks.append(Unhurried(keeper))
    trainer.fit(PROBLEM.train)
    keeper.save(trainer)
    assert len(checkpoints(tmp_path / "run")) == 2
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert names == ["latest", *(path.name for path in checkpoints(tmp_path / "run").values()), later.name]
    load_model(tmp_path / "run", optimizer=True, verify=True)


def test_what_stays_the_same_is_written_once(tmp_path):
    trainer, keeper = begin(tmp_path / "run", a_config(), seconds=1e-9)
    trainer.callbacks.append(Unhurried(keeper))
    trainer.fit(PROBLEM.train)
    keeper.save(trainer)
    one, other = list(checkpoints(tmp_path / "run").values())[:2]
    assert os.path.samefile(one / "labels.json", other / "labels.json")
    assert not os.path.samefile(one / "progress.json", other / "progress.json")
    shutil.rmtree(one)
    assert load_model(other).label_names == [f"label {i}" for i in range(300)]


class At(Callback):
    """Does something after a step."""

    def __init__(self, step, work):
        self.step, self.work = step, work

    def on_step(self, trainer, info):
        if info.step == self.step:
            self.work(trainer)


def test_a_checkpoint_that_can_not_be_written_is_told_and_training_goes_on(tmp_path):
    told: list[str] = []
    trainer, keeper = begin(tmp_path / "run", a_config(epochs=4), seconds=1e-9, told=told)
    trainer.callbacks.append(Unhurried(keeper))
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
    assert told
    assert "the checkpoint can't be written" in told[0]
    assert "training goes on, and the last checkpoint is" in told[0]
    keeper.save(trainer)
    assert newest(tmp_path / "run") == keeper.last
    assert load_model(tmp_path / "run", optimizer=True, verify=True).progress["step"] == trainer.step


def test_a_full_disk_costs_no_checkpoint_of_an_earlier_start(tmp_path):
    """A run at its end is started again, and finds no room to save what is saved already."""
    trainer, keeper = begin(tmp_path / "run", a_config())
    trainer.fit(PROBLEM.train)
    keeper.save(trainer)
    again, other = begin(tmp_path / "run", a_config())
    saved = load_model(tmp_path / "run", optimizer=True)
    again.network.load_state(saved.state)
    again.load_progress(saved.progress)
    assert again.step == trainer.step
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ModelError, match="File too large"):
            other.save(again)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load_model(tmp_path / "run", optimizer=True, verify=True).progress["step"] == trainer.step


def test_what_training_went_on_from_is_not_saved_again(tmp_path):
    trainer, keeper = begin(tmp_path / "run", a_config())
    trainer.fit(PROBLEM.train)
    keeper.save(trainer)
    written = (keeper.last / "weights.safetensors").stat().st_mtime_ns
    again, other = begin(tmp_path / "run", a_config(), last=keeper.last)
    again.load_progress(trainer.progress())
    other.save(again)
    assert (keeper.last / "weights.safetensors").stat().st_mtime_ns == written
    assert other.last_in_words() == f"the last checkpoint is {keeper.last}"


def test_ranks_give_up_a_checkpoint_together(tmp_path):
    """The disk of one rank refuses."""
    told: list[str] = []

    def train(comm):
        run = tmp_path / f"disk{comm.rank}"
        trainer, keeper = begin(run, a_config(threads=1), comm, told=told)
        if comm.rank == 1:
            (run / "checkpoints").rmdir()
            (run / "checkpoints").touch()
        trainer.fit(PROBLEM.train)
        with pytest.raises(ModelError, match=r"rank 1: .*step-.*can't be written") as caught:
            keeper.save(trainer)
        assert caught.value.collective
        return newest(run)

    assert run_ranks(2, train) == [None, None]
    assert not list((tmp_path / "disk0/checkpoints").iterdir())


@pytest.mark.parametrize("weights", ["float32", "bf16"])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, weights):
    """A neuron that no row meets any more goes bad: gradients don't tell."""
    trainer, keeper = begin(tmp_path / "run", a_config(output="random", random_negatives=1, weights=weights))

    def spoil(trainer):
        stored = trainer.network.output.arrays["weights"]
        stored[7] = np.nan if weights == "float32" else 0x7F80

    trainer.fit(PROBLEM.train)
    keeper.save(trainer)
    good = keeper.last
    trainer.step += 1
    spoil(trainer)
    with pytest.raises(Diverged, match=r"layer1: weights not finite at step \d+ with learning rate \S+$"):
        keeper.save(trainer)
    assert newest(tmp_path / "run") == good


def test_a_checkpoint_in_the_making_is_given_up_when_the_run_ends(tmp_path, slow_disk):
    """Not its own step's: that one is finished instead."""
    trainer, keeper = begin(tmp_path / "run", a_config(epochs=1), seconds=1e-9)
    trainer.fit(PROBLEM.train)
    keeper.save(trainer)
    assert newest(tmp_path / "run").name == f"step-{trainer.step:09}"
    assert not [layer for layer in trainer.network.layers if layer.snapshot]
    keeper.save(trainer)  # again: there is nothing to do
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


def test_models_without_tables_still_go_on(tmp_path):
    """As those of earlier versions are: tables are made from the weights."""
    config = a_config(**MODES["lsh"])
    trainer, keeper = begin(tmp_path / "run", config)
    trainer.fit(PROBLEM.train)
    keeper.save(trainer)
    saved = load_model(tmp_path / "run", optimizer=True)
    assert {"layer1.codes", "layer1.moved"} <= set(saved.state)
    other = Trainer(config.replace(epochs=3), PROBLEM.train.features, PROBLEM.train.labels)
    other.network.load_state({n: a for n, a in saved.state.items() if n not in ("layer1.codes", "layer1.moved")})
    other.load_progress(saved.progress)
    other.fit(PROBLEM.train)
    assert PROBLEM.precision(other.network) >= PROBLEM.precision(trainer.network) - 0.05


@pytest.mark.parametrize(("wrote", "reads"), [(1, 4), (4, 3), (3, 1)])
def test_tables_go_to_any_number_of_ranks(tmp_path, wrote, reads):
    config = a_config(**MODES["lsh"], threads=1)

    def write(comm):
        trainer, keeper = begin(tmp_path / "run", config, comm)
        trainer.fit(PROBLEM.train)
        keeper.save(trainer)
        return trainer.network.output.lsh.tables.codes.copy()

    written = run_ranks(wrote, write)

    def read(comm):
        state = load_together(tmp_path / "run", comm, optimizer=True).state
        return np.array(state["layer1.codes"])

    whole = np.empty((len(written[0]), 300), np.uint32)
    for rank, codes in enumerate(written):
        whole[:, rank::wrote] = codes
    for rank, codes in enumerate(run_ranks(reads, read)):
        assert_array_equal(codes, whole[:, rank::reads])


def test_a_manifest_lists_every_file(tmp_path):
    trainer, keeper = begin(tmp_path / "run", a_config(epochs=1))
    trainer.fit(PROBLEM.train)
    keeper.save(trainer)
    folder = newest(tmp_path / "run")
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    assert {path.name for path in folder.iterdir()} == {*listed, "manifest.json"}
