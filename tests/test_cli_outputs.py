"""Where predictions are written, and what planning says."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from dslide.config import Config
from dslide.data import synthesize
from dslide.memory import parse_bytes
from dslide.plan import plan
from dslide.timing import seconds_per_step


def dslide(*arguments, **settings):
    return subprocess.run([sys.executable, "-m", "dslide.cli", *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, **settings)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    synthesize(folder / "data", 200, 100, 30, 20, 0)
    done = dslide("train", folder / "data/train.txt", "--out", folder / "run", "--hidden", 8, "--epochs", 1)
    assert done.returncode == 0, done.stderr
    return folder


def test_predictions_go_to_a_new_file_and_never_over_an_old_one(trained):
    target = trained / "predictions.txt"
    first = dslide("predict", trained / "run", trained / "data/test.txt", "--output", target, "--k", 3)
    assert first.returncode == 0, first.stderr
    text = target.read_text()
    assert [len(line.split("\t")) for line in text.splitlines()] == [3] * 20

    again = dslide("predict", trained / "run", trained / "data/test.txt", "--output", target)
    assert again.returncode == 2
    assert "predictions.txt: exists already" in again.stderr
    assert target.read_text() == text
    assert [p.name for p in trained.glob("*partial*")] == []

    nowhere = dslide("predict", trained / "run", trained / "data/test.txt", "--output", trained / "no/such/file")
    assert nowhere.returncode == 2
    assert "can't be written: No such file" in nowhere.stderr
    assert "Traceback" not in nowhere.stderr


def test_raw_text_is_refused_by_a_model_that_knows_no_words(trained):
    text = trained / "text.tsv"
    text.write_text("a\tsome text\n")
    for command in (["predict", "run", text], ["train", "data/train.txt", "--test", text, "--out", "with-text"]):
        done = dslide(*command, cwd=trained)
        assert done.returncode == 2
        assert f"{text}: is raw text, but the model was trained on numbered features" in done.stderr
    assert not (trained / "with-text").exists()


@pytest.mark.parametrize("command", [["doctor"], ["train", "data/train.txt", "--out", "other"]])
def test_an_instruction_set_that_is_not_there_is_refused_first(trained, command):
    done = dslide(*command, cwd=trained, env={**os.environ, "DSLIDE_ISA": "v9"})
    assert done.returncode == 2
    expected = "dslide: error: DSLIDE_ISA: instruction-set level 'v9' is not one this machine runs: "
    assert done.stderr.startswith(expected)
    assert done.stderr.count("\n") == 1
    assert not (trained / "other").exists()


def test_plan_says_memory_and_time(trained):
    done = dslide("plan", trained / "data/train.txt", "--hidden", 16)
    assert done.returncode == 0, done.stderr
    memory, fits, time = done.stdout.splitlines()
    assert "2,126 parameters" in memory  # 100 x 16 + 16 + 16 x 30 + 30
    assert " fits into " in fits
    assert "samples/s" in time
    assert "for an epoch" in time


def test_plan_counts_what_the_network_allocates():
    from dslide.network import Network

    sampled = Config(hidden=(20,), output="lsh", optimizer="sgd")
    configs = [Config(hidden=(20, 48), optimizer="adam"), sampled, Config(hidden=(128,), hidden_share=0.5)]
    stored = [{}, {"weights": "bf16"}, {"moments": "bf16"}]
    for config in (config.replace(**storage) for config in configs for storage in stored):
        network, planned = Network(config, 1000, 700), plan(config, 1000, 700)
        assert planned.parameters == network.parameters
        sizes = {True: 0, False: 0}
        for layer in network.layers:
            for name, array in layer.arrays.items():
                sizes["moment" in name] += array.nbytes
        assert planned.parts["weights"] == sizes[False]
        assert planned.parts["optimizer state"] == sizes[True]
        tables = sum(layer.sampler.tables.bytes() for layer in network.layers if layer.sampler)
        copies = 6 * planned.parts["weights"]  # renewing copies rows of weights, as floats
        assert tables <= planned.parts["hash tables"] <= 2 * tables + copies


def test_a_step_of_any_kind_of_network_can_be_timed():
    for options in ({}, {"output": "lsh"}, {"loss": "sigmoid"}, {"active_sets": "row", "output": "random"}):
        seconds = seconds_per_step(Config(hidden=(8,), batch_size=16, **options), 50, 40)
        assert 0 < seconds < 60
        assert np.isfinite(seconds)


def test_plan_of_several_ranks_is_for_each_of_them():
    size = ["--features", 50_000, "--labels", 300_000, "--hidden", 512]
    totals = []
    for ranks in (1, 4):
        done = dslide("plan", *size, "--ranks", ranks, "--memory", "8GB")
        assert done.stdout.count("plan: 179,500,512 parameters") == 1  # by one process, which starts no others
        totals.append(parse_bytes(done.stdout.split("\n")[1].split(" fits")[0]))
    assert "on each of 4 ranks" in done.stdout
    assert totals[1] < totals[0] / 3
    refused = dslide("plan", *size, "--ranks", 513)
    assert refused.returncode == 2
    assert "--ranks: expected 1 to 512 for this network, not 513" in refused.stderr
