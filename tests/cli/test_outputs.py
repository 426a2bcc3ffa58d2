"""Where predictions are written, and what planning says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

from dslide.cli import main
from dslide.config import Config
from dslide.data import synthesize
from dslide.planner import calibration
from dslide.planner.memory import plan
from dslide.util.units import parse_bytes


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def dslide(capfd):
    """Runs a command."""

    def run(*arguments):
        return Done(main([*map(str, arguments)]), *capfd.readouterr())

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    synthesize(folder / "data", 200, 100, 30, 20, 0)
    words = ["train", folder / "data/train.txt", "--out", folder / "run", "--hidden", 8, "--epochs", 1]
    assert main([*map(str, words)]) == 0
    return folder


def test_predictions_go_to_a_new_file_and_never_over_an_old_one(trained, dslide):
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


def test_raw_text_is_refused_by_a_model_that_knows_no_words(trained, dslide, monkeypatch):
    monkeypatch.chdir(trained)
    text = trained / "text.tsv"
    text.write_text("a\tsome text\n")
    for command in (["predict", "run", text], ["train", "data/train.txt", "--test", text, "--out", "with-text"]):
        done = dslide(*command)
        assert done.returncode == 2
        assert f"{text}: is raw text, but the model was trained on numbered features" in done.stderr
    assert not (trained / "with-text").exists()


@pytest.mark.parametrize("command", [["doctor"], ["train", "data/train.txt", "--out", "other"]])
def test_an_instruction_set_that_is_not_there_is_refused_first(trained, command):
    done = subprocess.run(
        [sys.executable, "-m", "dslide.cli", *command], capture_output=True, text=True, timeout=60, cwd=trained,
        env={**os.environ, "DSLIDE_ISA": "v9"},
    )  # fmt: skip
    assert done.returncode == 2
    expected = "dslide: error: DSLIDE_ISA: instruction-set level 'v9' is not one this machine runs: "
    assert done.stderr.startswith(expected)
    assert done.stderr.count("\n") == 1
    assert not (trained / "other").exists()


def test_plan_says_memory_and_time(trained, dslide):
    done = dslide("plan", trained / "data/train.txt", "--hidden", 16)
    assert done.returncode == 0, done.stderr
    memory, fits, step, time, *_ = done.stdout.splitlines()
    assert "2,126 parameters" in memory  # 100 x 16 + 16 + 16 x 30 + 30
    assert " fits into " in fits
    assert step.startswith("a step of 256 rows takes about ")
    assert "samples/s" in time
    assert "for an epoch" in time


def test_plan_counts_what_the_network_allocates():
    from dslide.model.network import Network

    sampled = Config(hidden=(20,), output="lsh", optimizer="sgd")
    configs = [Config(hidden=(20, 48), optimizer="adam"), sampled, Config(hidden=(128,), hidden_share=0.5)]
    configs.append(Config(hidden=(20,), output="cells"))
    stored = [{}, {"weights": "bf16"}, {"moments": "bf16"}]
    for config in (config.replace(**storage) for config in configs for storage in stored):
        network, planned = Network(config, 1000, 700), plan(config, 1000, 700)
        assert planned.parameters == network.parameters
        sizes = {True: 0, False: network.calibration.array.nbytes}
        for layer in network.layers:
            for name, array in layer.arrays.items():
                sizes["moment" in name] += array.nbytes
        assert planned.parts["weights"] == sizes[False]
        assert planned.parts["optimizer state"] == sizes[True]
        cells = [each.state for each in (network.cells, network.index, network.recent) if each is not None]
        arrays = sum(array.nbytes for state in cells for array in state.values())
        assert arrays <= planned.parts["cells of hidden vectors"] <= 3 * arrays + 12 * 256 * 256 * 66
        tables = sum(layer.lsh.tables.bytes() for layer in network.layers if layer.lsh)
        copies = 6 * planned.parts["weights"]  # renewing copies rows of weights, as floats
        assert tables <= planned.parts["hash tables"] <= 2 * tables + copies


def test_plan_of_several_nodes_is_for_each_of_them(dslide, monkeypatch):
    monkeypatch.setattr(calibration, "MOST_TRIAL_PARAMETERS", 1_000_000)  # trials are quick, if less exact
    monkeypatch.setattr(calibration, "TRIAL_SECONDS", 0.05)
    size = [
        "--features",
        50_000,
        "--labels",
        300_000,
        "--hidden",
        512,
        "--batch-size",
        64,
        "--prior-labels",
        0,
        "--cores",
        1,
    ]
    options = ["--memory", "800MB", "--bandwidth", "1mbit", "--latency", "1ms"]
    done = dslide("plan", *size, "--nodes", 4, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("plan: 179,500,512 parameters") == 1  # by one process, which starts no others
    memory, fits, sent, step, speed, _, heads, *rest = done.stdout.splitlines()
    assert "on each of 4 ranks" in memory
    assert fits.endswith(" fits into 800 MB")
    assert re.fullmatch(r"each of 4 nodes sends at most \S+ KB in a step, in 4 rounds, over links of 1 Mbit/s", sent)
    assert step.endswith("; 4 ms of latency")
    assert "for an epoch" not in speed  # how many rows there are is not known
    assert heads.split()[0] == "nodes"
    table = [line.split() for line in rest[:5]]
    assert [int(line[0]) for line in table] == [1, 2, 4, 8, 16]
    totals = [parse_bytes(" ".join(line[1:3])) for line in table]
    assert totals == sorted(totals, reverse=True)
    assert table[0][-1] == "memory"  # which limits one node
    assert table[2][-2:] == ["link", "bandwidth"]
    assert rest[6].startswith("recommended: 4 nodes: the fewest that have enough memory; 8 would be ")
    assert re.fullmatch(r"with --wire int8 these would be 1\.\d\d times as fast, by what is sent", rest[7])
    assert rest[8].startswith("times are from single ranks of 1, ")


def test_plan_says_what_is_extrapolated_and_what_cannot_be(dslide):
    size = ["--features", 300, "--labels", 400, "--hidden", 8, "--batch-size", 16, "--rows", 100]
    done = dslide("plan", *size, "--cores", 1000, "--memory", "1KB")
    assert done.returncode == 0, done.stderr
    *_, best, measured = done.stdout.splitlines()
    assert best.startswith("recommended: none of these, which lack memory; 8 nodes would need ")
    assert re.search(r"it has \d+ cores?, and (1000 are extrapolated by Amdahl's law|more are taken)", measured)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "513"], "--nodes: expected 1 to 512 for this network, not 513"),
        (["--nodes", "0"], "--nodes: expected 1 to 512 for this network, not 0"),
        (["--cores", "0"], "--cores: expected 1 to 2147483647, not 0"),
        (["--rows", "-1"], "--rows: expected 0 to 2147483647, not -1"),
        (["--labels", "3000000000"], "--labels: expected 1 to 2147483647, not 3000000000"),
        (["--bandwidth", "fast"], "--bandwidth: expected something like 100mbit, 1gbit or unlimited, not 'fast'"),
        (["--latency", "1"], "--latency: expected a time like 0.2ms or 50us, not '1'"),
    ],
)
def test_plan_refuses_in_one_sentence(words, message, dslide):
    done = dslide("plan", "--features", 50_000, "--labels", 300_000, "--hidden", 512, *words)
    assert done.returncode == 2
    assert done.stderr == f"dslide: error: {message}\n"


def test_what_the_label_prior_takes_in_a_step_is_planned():
    rows, neurons = 256, 700
    for width in (75, 2):  # features of a row
        with_prior, without = (
            plan(Config(prior_labels=each), 1000, neurons, threads=1, features_per_row=width) for each in (8, 0)
        )
        # sums of a thread; positions, values, counted part and gradient of what rows add, twice; gradients of logits
        added = 28 * neurons + 32 * rows * width * 8 + 4 * rows * neurons
        assert with_prior.parts["work space"] - without.parts["work space"] == added
