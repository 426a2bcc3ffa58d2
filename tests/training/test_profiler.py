"""Profiles of training: time adds up, work is what a hand count says, training is not changed by being looked at."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal
from support.inprocess import run_ranks
from support.plain import PLAIN

from dslide import _core
from dslide.checkpoint.saved_model import model_folder
from dslide.cli import main
from dslide.comm import solo
from dslide.config import Config
from dslide.data import Dataset, SparseRows, synthesize
from dslide.training.phases import (
    ACTIVE,
    FIRST_PASS,
    HASH_LOOKUP,
    HIDDEN_BACKWARD,
    HIDDEN_FORWARD,
    PACKING,
    READING,
    REBUILDING,
    REST,
    SECOND_PASS,
    WAITING,
)
from dslide.training.profiler import Profile
from dslide.training.trainer import Trainer
from dslide.training.work import Work
from dslide.util.threads import Speeds

FEATURES, LABELS = 6, 10
SPEEDS = Speeds(gflops=100.0, copy_gigabytes=10.0)
CONFIGURATIONS = {
    "full": {"output": "full"},
    "hash hits": {"output": "lsh", "hash_hits": 2, "random_negatives": 3},
    "random": {"output": "random", "random_negatives": 4},
    "cells": {"output": "cells", "hash_hits": 2, "random_negatives": 3, "rebuild_every": 2},
    "sigmoid": {"output": "lsh", "loss": "sigmoid", "hash_hits": 2, "random_negatives": 3},
    "row sets": {"output": "lsh", "active_sets": "row", "hash_hits": 2, "random_negatives": 3},
    "row sets, sigmoid": {"output": "random", "active_sets": "row", "loss": "sigmoid", "random_negatives": 3},
    "two hidden layers": {"hidden": (3, 2), "output": "full"},
    "sampled hidden layer": {"output": "full", "hidden_share": (0.5,)},
    "sampled hidden layers": {"hidden": (8, 6), "output": "lsh", "hidden_share": (0.5, 0.5), "active_sets": "row"},
}


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def make_data(copies: int = 1) -> Dataset:
    """Four rows, with seven elements of the four inputs 0, 1, 2 and 5, and with five labels; `copies` times."""
    x = sp.csr_matrix((np.ones(7), ([0, 0, 1, 2, 2, 2, 3], [0, 1, 1, 1, 2, 5, 0])), shape=(4, FEATURES))
    y = sp.csr_matrix((np.ones(5), ([0, 0, 1, 2, 3], [0, 7, 3, 9, 4])), shape=(4, LABELS))
    return Dataset(SparseRows.from_scipy(sp.vstack([x] * copies)), SparseRows.from_scipy(sp.vstack([y] * copies)))


def make_config(**options) -> Config:
    return Config(**PLAIN | {"hidden": (3,), "batch_size": 4, "epochs": 1, "threads": 1} | options)


def profiled(comm=None, copies=1, **options) -> tuple[Profile, Trainer]:
    profile = Profile(SPEEDS)
    trainer = Trainer(make_config(**options), FEATURES, LABELS, comm=comm, profile=profile)
    trainer.fit(make_data(copies))
    return profile, trainer


def work_of(profile: Profile, *names: str) -> list[Work]:
    """The counted work of some phases, all of which must be known."""
    assert all(profile.phases[name].known for name in names)
    return [Work(profile.phases[name].flops, profile.phases[name].bytes) for name in names]


STEP = (READING, HIDDEN_FORWARD, FIRST_PASS, SECOND_PASS, HIDDEN_BACKWARD)


def test_the_work_of_a_step_is_what_a_hand_count_says():
    """Four rows, 3 hidden units and all 10 labels, with Adam's two moments."""
    profile, _ = profiled(output="full")
    assert work_of(profile, *STEP) == [
        Work(0, 2 * (7 + 5) * 8),
        Work(2 * 7 * 3, 4 * (4 * 3) + 8 * 7 + 4 * (4 * 3)),  # weights of 4 inputs, elements, sums
        Work(4 * 4 * 10 * 3, 4 * (10 * 3) + 2 * 4 * (4 * 3) + 4 * (4 * 10)),  # weights, inputs, gradients, exponentials
        Work(2 * 4 * 10 * 3 + 4 * 3, 2 * 12 * (10 * 3) + 3 * 4 * (4 * 3) + 4 * (4 * 10)),
        Work(2 * 7 * 3, 2 * 12 * (4 * 3) + 8 * 7 + 4 * (4 * 3)),
    ]
    assert profile.steps == 1


@pytest.mark.parametrize(("optimizer", "state"), [("adam", 12), ("adagrad", 8), ("sgd", 4)])
def test_an_optimizer_moves_the_moments_it_has(optimizer, state):
    profile, _ = profiled(output="full", optimizer=optimizer)
    second, backward = work_of(profile, SECOND_PASS, HIDDEN_BACKWARD)
    assert second.bytes == 2 * state * (10 * 3) + 3 * 4 * (4 * 3) + 4 * (4 * 10)
    assert backward.bytes == 2 * state * (4 * 3) + 8 * 7 + 4 * (4 * 3)


def test_the_sigmoid_loss_takes_one_pass_with_three_products():
    profile, _ = profiled(output="full", loss="sigmoid")
    assert profile.phases[FIRST_PASS].calls == 0
    assert FIRST_PASS not in profile.figures()
    assert work_of(profile, SECOND_PASS) == [Work(6 * 4 * 10 * 3, 2 * 12 * (10 * 3) + 2 * 4 * (4 * 3))]


def test_a_second_hidden_layer_adds_its_products():
    profile, _ = profiled(hidden=(3, 2), output="full")
    forward, backward = work_of(profile, HIDDEN_FORWARD, HIDDEN_BACKWARD)
    sums, slots = 4 * 3, 4 * 2  # of the first layer, of the second
    assert forward.flops == 2 * 7 * 3 + 2 * slots * 3
    assert forward.bytes == 4 * (4 * 3) + 8 * 7 + 4 * sums + 4 * (2 * 3) + 4 * sums + 4 * slots
    assert backward.flops == 2 * 7 * 3 + 4 * slots * 3
    assert backward.bytes == 2 * 12 * (4 * 3) + 8 * 7 + 4 * sums + 2 * 12 * (2 * 3) + 2 * 4 * sums + 4 * slots


def test_row_sets_count_the_neurons_that_each_row_has():
    config = make_config(output="random", active_sets="row", random_negatives=3)
    profile = Profile(SPEEDS)
    trainer = Trainer(config, FEATURES, LABELS, profile=profile)
    data = make_data()
    profile.begin(trainer.comm)
    info = trainer.train_batch(data.x, data.y, 1)
    profile.end()
    slots = round(4 * info.active)
    assert 4 < slots < 4 * LABELS
    first, second = work_of(profile, FIRST_PASS, SECOND_PASS)
    assert (first.flops, second.flops) == (2 * slots * 3, 4 * slots * 3)


def test_a_rank_counts_its_own_neurons_and_every_part_of_the_batch():
    """Two ranks have five labels each; the batch is exchanged in two parts, for each of which weights are read."""
    options = {"output": "full", "batch_size": 256, "watchdog": 20}
    profiles = run_ranks(2, lambda comm: profiled(comm, copies=64, **options)[0])
    product, weights, x, logits = 2 * 256 * 5 * 3, 4 * 5 * 3, 4 * 256 * 3, 4 * 256 * 5
    for profile, hidden in zip(profiles, (2, 1), strict=True):
        assert profile.phases[FIRST_PASS].calls == 2
        assert work_of(profile, HIDDEN_FORWARD)[0].flops == 2 * 7 * 64 * hidden
        assert work_of(profile, FIRST_PASS, SECOND_PASS) == [
            Work(2 * product, 2 * weights + 2 * x + logits),
            Work(product + 256 * 3, 2 * x + 2 * 3 * weights + x + logits),
        ]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_every_configuration_has_a_profile_and_trains_as_without(options, ranks):
    options = options | {"epochs": 3, "rebuild_every": 1, "watchdog": 20}

    def with_and_without(comm):
        profile, trainer = profiled(comm, **options)
        plain = Trainer(make_config(**options), FEATURES, LABELS, comm=comm)
        plain.fit(make_data())
        return profile, trainer.network.state(), plain.network.state()

    for profile, looked_at, plain in run_ranks(ranks, with_and_without):
        for name, array in plain.items():
            assert_array_equal(looked_at[name], array, err_msg=name)
        rows = profile.figures()
        assert profile.steps == 3
        assert {READING, HIDDEN_FORWARD, ACTIVE, SECOND_PASS, HIDDEN_BACKWARD, REST, "all"} <= set(rows)
        assert (HASH_LOOKUP in rows) == (options["output"] in ("lsh", "cells") or "hidden_share" in options)
        assert (WAITING in rows) == (PACKING in rows) == (ranks > 1)
        assert sum(row["share_of_time"] for row in rows.values()) == pytest.approx(2)  # all phases, and "all"
        assert profile.table().count("\n") == len(rows) + 2


def test_the_phases_are_all_of_the_time():
    data, profile = make_data(), Profile(SPEEDS)
    trainer = Trainer(make_config(output="lsh"), FEATURES, LABELS, profile=profile)
    trainer.train_batch(data.x, data.y, 0)
    assert profile.seconds == 0  # nothing counts before it begins
    outside = time.perf_counter()
    profile.begin(solo())
    inside = time.perf_counter()
    for _ in range(5):
        trainer.train_batch(data.x, data.y, 0)
    at_least = time.perf_counter() - inside
    profile.end()
    assert at_least <= profile.seconds <= time.perf_counter() - outside
    trainer.network.rebuild_tables()
    assert profile.phases[REBUILDING].calls == 0


def test_a_phase_inside_another_is_not_counted_twice():
    profile = Profile(SPEEDS)
    profile.begin(solo())
    with profile.phase(HIDDEN_FORWARD, lambda: Work(1000, 500)):
        begin = time.perf_counter()
        with profile.phase(HASH_LOOKUP):
            time.sleep(0.03)
        inner = time.perf_counter() - begin
    profile.end()
    assert 0.03 <= profile.phases[HASH_LOOKUP].seconds <= inner
    assert profile.seconds - profile.phases[HASH_LOOKUP].seconds >= profile.phases[HIDDEN_FORWARD].seconds > 0
    assert (profile.phases[HASH_LOOKUP].known, profile.phases[HIDDEN_FORWARD].known) == (False, True)


def test_waiting_is_taken_out_of_the_phase_it_happens_in():
    def work(comm):
        profile = Profile(SPEEDS)
        waited = comm.wait_seconds
        profile.begin(comm)
        with profile.phase(SECOND_PASS):
            if comm.rank == 1:
                time.sleep(0.05)
            comm.barrier("test")
        profile.end()
        return profile, comm.wait_seconds - waited

    for profile, waited in run_ranks(2, work):
        assert profile.phases[WAITING].seconds == waited > 0
    assert profile.phases[SECOND_PASS].seconds >= 0.05  # rank 1 slept, and did not wait


def test_figures_are_held_against_the_measured_speeds():
    profile = Profile(SPEEDS)
    profile.steps = 4
    for name, seconds, flops, moved in ((FIRST_PASS, 3.0, 150e9, 6e9), (HIDDEN_BACKWARD, 1.0, 1e9, 5e9)):
        phase = profile.phases[name]
        phase.calls, phase.seconds, phase.flops, phase.bytes = 4, seconds, int(flops), int(moved)
    rows = profile.figures()
    assert list(rows) == [FIRST_PASS, HIDDEN_BACKWARD, "all"]
    first = rows[FIRST_PASS]
    assert (first["ms_per_step"], first["share_of_time"], first["gflops"]) == (750.0, 0.75, 50.0)
    assert (first["share_of_peak"], first["gigabytes_per_second"], first["share_of_copying"]) == (0.5, 2.0, 0.2)
    assert (first["bound"], rows[HIDDEN_BACKWARD]["bound"]) == ("arithmetic", "memory")
    assert rows["all"]["flops"] == 151e9
    assert "100 GFLOP/s in multiply-adds and 10.0 GB/s in copying" in profile.table()


def test_the_command_prints_the_table_and_writes_it(tmp_path, capsys):
    synthesize(tmp_path / "data", 200, 100, 30, 20, 0)
    options = [str(tmp_path / "data/train.txt"), "--hidden", "8", "--epochs", "2", "--batch-size", "50"]
    for name, more in (("plain", []), ("profiled", ["--profile"]), ("quiet", ["--profile", "--quiet"])):
        assert main(["train", *options, "--out", str(tmp_path / name), *more]) == 0
        printed = capsys.readouterr().out
        assert ("measured for the profile: " in printed) == (name == "profiled")
        assert ("of peak" in printed) == (SECOND_PASS in printed) == (name != "plain")
        assert (tmp_path / name / "profile.json").exists() == (name != "plain")
    written = json.loads((tmp_path / "profiled/profile.json").read_text())
    assert written["steps"] == 8
    assert written["measured_peak"].keys() == {"gflops", "copy_gigabytes"}
    assert written["phases"][SECOND_PASS]["calls"] == 8
    assert written["phases"]["all"]["seconds"] == pytest.approx(written["seconds"])
    folders = [model_folder(tmp_path / name) for name in ("plain", "profiled")]
    weights = [(folder / "weights.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1]
