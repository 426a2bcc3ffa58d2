"""dslide doctor on several ranks: links between them, what a step sends, and the command itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import support.inprocess as inprocess
from support.inprocess import Fault, Injection, InProcess, run_ranks
from support.mpi_run import mpiexec
from support.plain import PLAIN, PLAIN_ARGUMENTS

from dslide import Config, Network
from dslide.cli import main
from dslide.cli.doctor_ranks import links_lines
from dslide.planner.diagnosis import find_differences, library_name
from dslide.planner.link_test import SIZES, AllAtOnce, Pair, measure_all_at_once, measure_pairs, pairs
from dslide.planner.traffic import bytes_per_step, rounds_per_step
from dslide.util.csr import Csr

pytestmark = pytest.mark.waiting
LIMIT = 120.0  # seconds for any command here
DSLIDE = [sys.executable, "-m", "dslide.cli"]
SMALL = ["--features", "500", "--labels", "5000", "--hidden", "16", "--batch-size", "32"]


def command(*words: object, start: list[str] = DSLIDE) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*start, *map(str, words)], capture_output=True, text=True, timeout=LIMIT)


# ---- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 11))
def test_every_pair_has_its_turn_neighbours_first(size: int) -> None:
    order = list(pairs(size))
    assert sorted(order) == [(first, second) for first in range(size) for second in range(first + 1, size)]
    distances = [min(second - first, size - second + first) for first, second in order]
    assert distances == sorted(distances)


def test_the_pair_with_a_slow_link_is_found_and_no_other() -> None:
    delay = 0.05
    slow = [
        Injection(Fault.DELAY, rank, piece, to=to, seconds=delay)
        for rank, to in ((0, 2), (2, 0))
        for piece in range(2000)
    ]
    found = run_ranks(3, measure_pairs, injections=slow)
    assert found[0] == found[1] == found[2]
    assert set(found[0]) == {(0, 1), (1, 2), (0, 2)}
    assert found[0][0, 2].round_trip >= 2 * delay
    assert max(found[0][pair].round_trip for pair in ((0, 1), (1, 2))) < 2 * delay
    assert all(link.forth > 0 and link.back > 0 for link in found[0].values())


def test_little_is_sent_over_a_narrow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = 2.5e5  # bytes per second: the smallest message takes a quarter of a second

    class Narrow(InProcess):
        free = 0.0  # when what was sent before has arrived

        def send(self, to: int, frame: bytes) -> None:
            self.free = max(self.free, time.monotonic()) + len(frame) / rate
            self._links[self.rank][to].append((self.free, frame))

    monkeypatch.setattr(inprocess, "InProcess", Narrow)
    results = run_ranks(2, lambda comm: (measure_pairs(comm)[0, 1], comm.bytes_sent))
    for link, sent in results:
        assert max(link.forth, link.back) < 4 * rate
        assert SIZES[0] <= sent < 1.5 * SIZES[0]


def test_what_does_not_fit_in_the_time_is_left_out_on_all_ranks() -> None:
    assert run_ranks(4, lambda comm: measure_pairs(comm, seconds=-1.0)) == [{}] * 4
    assert any("6 pairs were left out" in line for line in links_lines(4, {}))


def test_all_at_once_is_the_same_figure_on_all_ranks() -> None:
    results = run_ranks(3, measure_all_at_once)
    assert results[0] == results[1] == results[2]
    assert results[0].bytes_sent == 2 << 16
    assert results[0].seconds > 0


def test_time_for_a_step_counts_rounds_and_bytes() -> None:
    together = AllAtOnce(empty_seconds=1e-3, seconds=3e-3, bytes_sent=2000)
    assert together.time_for(bytes_sent=4000, rounds=5) == pytest.approx(5e-3 + 4e-3)


# ---- what a step sends ---------------------------------------------------------------------------------------------


def bytes_sent(config: Config, labels: int, ranks: int, steps: int = 3) -> float:
    """Bytes of a step, the mean of all ranks, counted by their communicators."""
    random = np.random.default_rng(0)
    rows = config.batch_size

    def lists(columns: int, each: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids = np.sort(random.permuted(np.tile(np.arange(columns, dtype=np.int32), (rows, 1)), axis=1)[:, :each], axis=1)
        values = random.random(rows * each).astype(np.float32) + 0.1
        return np.arange(rows + 1, dtype=np.int64) * each, ids.reshape(-1), values

    x, y = Csr(*lists(60, 20)), Csr(*lists(labels, 2))

    def work(comm: inprocess.Communicator) -> float:
        network = Network(config, 60, labels, comm=comm)
        network.train_step(x, y, 0, 1e-3)
        network.rebuild_tables()  # from now on neurons are looked up
        before = comm.bytes_sent
        for step in range(1, steps + 1):
            network.train_step(x, y, step, 1e-3)
        return (comm.bytes_sent - before) / steps

    return float(np.mean(run_ranks(ranks, work)))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"wire": "bf16", "batch_size": 200},
        {"wire": "int8", "loss": "sigmoid"},
        {"output": "lsh", "batch_size": 150, "micro_batches": 4},
        {"output": "lsh", "probe": "vanilla", "hidden": (32, 48)},
        {"output": "lsh", "active_sets": "row", "hash_hits": 20},
        {"output": "cells"},
    ],
    ids=str,
)
def test_bytes_of_a_step_are_those_of_the_formula(options: dict, ranks: int) -> None:
    """Linear activations have no zeros, so messages have their full length."""
    config = Config(**PLAIN | {"hidden": (48,), "activation": "linear", "wire": "float32", "batch_size": 64} | options)
    assert bytes_per_step(config, 300, ranks) == pytest.approx(bytes_sent(config, 300, ranks), rel=0.15)


@pytest.mark.parametrize("options", [{}, {"hidden": (64, 48), "hidden_share": (0.5, 1.0)}], ids=str)
def test_zeros_behind_relu_make_messages_shorter_than_the_formula(options: dict) -> None:
    config = Config(**PLAIN | {"hidden": (48,), "wire": "float32", "batch_size": 64} | options)
    sent, bound = bytes_sent(config, 300, 2), bytes_per_step(config, 300, 2)
    assert bound / 3 < sent < bound


def test_one_rank_sends_nothing() -> None:
    assert bytes_per_step(Config(), 300, 1) == 0


def test_rounds_are_the_exchanges_that_wait_for_each_other() -> None:
    few = Config(output="full", loss="sigmoid")
    assert rounds_per_step(few, 300) == 2  # activations, gradients
    assert rounds_per_step(few.replace(loss="softmax", output="lsh"), 300) == 4  # and hits, normaliser
    assert rounds_per_step(few.replace(hidden=(8, 8)), 300) == 4


# ---- what is said --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: today\n", "MPICH 5.0.2"),
        ("Open MPI v5.0.7, package: Open MPI root@host Distribution, ident: 5.0.7", "Open MPI 5.0.7"),
        ("Intel(R) MPI Library 2021.14 for Linux* OS\n", "Intel MPI 2021.14"),
        ("some thing", "some thing"),
    ],
)
def test_mpi_libraries_are_called_by_their_short_names(said: str, name: str) -> None:
    assert library_name(said) == name


def test_differences_that_matter_are_named_with_ranks() -> None:
    one = {"dslide": "1.0", "python": "3.11.7", "MPI": "MPICH 5.0.2", "numpy": "2.0"}
    assert find_differences([one, one | {"python": "3.11.9", "numpy": "1.26"}]) == {}
    found = find_differences([one, one | {"python": "3.12.1", "MPI": "Open MPI 5.0.7"}, one | {"dslide": "1.1"}])
    assert found == {
        "dslide": "dslide is 1.0 on ranks 0 and 1, 1.1 on rank 2",
        "python": "python is 3.11 on ranks 0 and 2, 3.12 on rank 1",
        "MPI": "MPI is MPICH 5.0.2 on ranks 0 and 2, Open MPI 5.0.7 on rank 1",
    }


def test_among_many_ranks_the_slowest_links_are_named() -> None:
    found = {pair: Pair(1e-3, 1e8, 1e8) for pair in pairs(20)} | {(4, 17): Pair(0.25, 1e8, 1.25e5)}
    lines = links_lines(20, found)
    assert len(lines) == 2
    assert "1 in the middle; slowest: 4 and 17 250" in lines[0]
    assert "800 in the middle; slowest: 17 to 4 1" in lines[1]


# ---- the command -----------------------------------------------------------------------------------------------------


def test_doctor_on_two_ranks() -> None:
    mpiexec()
    ended = command("doctor", "--ranks", 2, *SMALL)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert re.fullmatch(r"2 ranks, \S.* \d\S*", lines[0])
    assert lines[1].split()[:2] == ["rank", "host"]
    assert [line.split()[0] for line in lines[2:4]] == ["0", "1"]
    assert re.search(r"500 features, hidden layers of 16 and 5,000 labels:", ended.stdout)
    assert "Amazon" not in ended.stdout
    assert re.search(r"compute about [\d.]+ ms, network about [\d.]+ ms: [\d,]+ to [\d,]+ samples/s", ended.stdout)


def test_ranks_with_different_versions_are_refused(tmp_path: Path) -> None:
    installed = tmp_path / "dslide-9.8.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: dslide\nVersion: 9.8\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    other = [":", "-n", "1", "env", f"PYTHONPATH={path}", *DSLIDE, "doctor"]
    ended = command("-n", 1, *DSLIDE, "doctor", *other, start=[mpiexec()])
    assert ended.returncode == 2
    assert re.search(r"^dslide is \S+ on rank 0, 9.8 on rank 1$", ended.stdout, re.MULTILINE)
    errors = [line for line in ended.stderr.splitlines() if line.startswith("dslide: error:")]
    assert errors == ["dslide: error: ranks have different versions of dslide; install the same on all hosts"]


def test_a_network_that_does_not_fit_is_refused() -> None:
    mpiexec()
    ended = command("doctor", "--ranks", 2, "--features", 1000, "--labels", 10**11)
    assert ended.returncode == 2
    assert re.fullmatch(r"dslide: error: ranks 0 and 1: training .* needs about .*\n", ended.stderr)


def test_a_run_sends_what_the_formula_says(tmp_path: Path) -> None:
    mpiexec()
    assert command("synth", tmp_path / "data", "--rows", 512, "--features", 300, "--labels", 6000).returncode == 0
    options = [*PLAIN_ARGUMENTS, "--hidden", 32, "--activation", "linear", "--wire", "float32", "--batch-size", 128,
               "--epochs", 1]  # fmt: skip
    run = command("train", tmp_path / "data/train.txt", "--ranks", 2, "--out", tmp_path / "run", *options)
    assert run.returncode == 0, run.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    expected = bytes_per_step(Config.from_dict(summary["config"]), summary["labels"], 2)
    assert summary["bytes_sent_per_step"] == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hidden", "8"], "hidden: of use with several ranks"),
        (["--features", "8", "--labels", "8"], "features: of use with several ranks"),
        (["--hidden", "0", "--ranks", "2"], "hidden: expected a whole number, 1 to"),
        (["--labels", "8", "--ranks", "2"], "--features and --labels: give both"),
        (["--labels", "0", "--features", "9", "--ranks", "2"], "--labels: expected at least 1, not 0"),
        (["--hidden", "1", "--ranks", "2"], "1 neurons of a hidden layer can't be split over 2 ranks"),
    ],
)
def test_bad_options_are_one_sentence(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    if "--ranks" in words:
        mpiexec()
    assert main(["doctor", *words]) == 2
    _, err = capfd.readouterr()
    assert err.startswith(f"dslide: error: {message}")
    assert err.count("\n") == 1
