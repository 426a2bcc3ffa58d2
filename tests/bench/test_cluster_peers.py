"""Jobs and training on emulated clusters; tests that need a lab are skipped without root."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cluster import __main__ as command
from bench.cluster import peers
from bench.cluster.jobs import run_job
from bench.cluster.training import steps_left
from bench.lib.processes import Outcome
from bench.lib.workload import HIDDEN
from dslide import netlab
from dslide.comm import launched_as
from dslide.data import load, synthesize

pytestmark = pytest.mark.waiting
NAME = f"clustertest{os.getpid()}"
HERE = "tests.bench.test_cluster_peers"  # as ranks import it
FEATURES, LABELS = 300, 2000


@pytest.fixture(scope="module")
def lab() -> Iterator[str]:
    """The name of a lab with two nodes."""
    from netlab.test_netlab import missing  # not known to ranks, which import this file too

    if reason := missing():
        pytest.skip(reason)
    netlab.up(2, "unlimited", NAME)
    try:
        yield NAME
    finally:
        netlab.down(NAME)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("data") / "tiny"
    synthesize(made, rows=400, features=FEATURES, labels=LABELS, test_rows=150, seed=0)
    return str(made)


# ---- anywhere -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**6), st.floats(1e-4, 1e4), st.floats(1e-3, 1e4), st.integers(1, 50))
def test_training_stops_when_time_and_steps_are_enough(steps, passed, seconds, least):
    left = steps_left(steps, passed, seconds, least)
    assert (left == 0) == (passed >= seconds and steps >= least)
    assert left <= steps
    if passed >= seconds:
        assert steps + left <= max(steps, least)


def test_the_clock_is_read_before_much_more_than_the_time_has_passed():
    """Steps of a tenth of a second for ten seconds."""
    steps, more = 0, 1
    while more:
        steps += more
        more = steps_left(steps, steps / 10, 10.0, 1)
    assert 100 <= steps <= 101


def test_softmax_loss_equals_that_of_pytorch():
    torch = pytest.importorskip("torch")
    from bench.cluster.ddp_rank import SoftmaxLoss

    torch.manual_seed(0)
    logits = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    rows, columns = torch.tensor([0, 0, 1, 2]), torch.tensor([1, 6, 3, 0])
    weights = torch.tensor([0.5, 0.5, 1.0, 1.0], dtype=torch.float64)
    target = torch.zeros(3, 7, dtype=torch.float64)
    target[rows, columns] = weights
    expected = torch.nn.functional.cross_entropy(logits, target)
    (gradient,) = torch.autograd.grad(3 * expected, logits)
    found = SoftmaxLoss.apply(logits, rows, columns, weights)
    (found_gradient,) = torch.autograd.grad(3 * found, logits)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_gradient, gradient)


def test_systems_and_comparisons_of_a_section():
    section = peers.speed_section(4, "100mbit", peers.NAMES, "lab", Path("data"), peers.QUICK, "As above.")
    assert section.title == "4 nodes, 100 Mbit/s"
    names = [system.name for system in section.systems]
    assert names == [
        "dslide, default sampling, batch 256",
        "dslide, 4,096 random negatives, batch 1,024",
        "dslide, all outputs, batch 256",
        "PyTorch DDP, 4,096 random negatives, batch 4 x 256",
        "PyTorch DDP, all outputs, batch 4 x 128",
    ]
    assert len(section.comparisons) == 2 * 2 * 3  # of speed and bytes: both of dslide's with all others
    dense = section.systems[-1]
    assert 4 * 16 * 103e6 < dense.least_bytes < 16e9  # weights, gradients and two moments on each node, at least
    assert dense.needs == "torch"
    assert len(peers.setups(2)) == len(names) + 1  # with a larger batch


def test_curves_are_those_of_systems_that_ran():
    names = ["default", "ddp-dense"]
    ours, dense = peers.curve_section(2, "1gbit", names, "lab", Path("data"), peers.QUICK).systems
    points: Any = [[4.0, 0.2], [8.0, 0.5]]
    outcomes = {ours: Outcome([{"curve": points}]), dense: Outcome(problem="failed", failed=True)}
    systems = {"default": ours, "ddp-dense": dense}
    assert peers.curves(systems, outcomes) == {"dslide": [(4.0, 0.2), (8.0, 0.5)]}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["pers"], "invalid choice: 'pers'"),
        (["peers", "--nodes", "1,2"], "expected numbers above 1, like 2,4, not '1,2'"),
        (["peers", "--rates", "fast"], "expected something like 100mbit, 1gbit or unlimited, not 'fast'"),
        (["peers", "--rounds", "0"], "expected a whole number above 0, not '0'"),
    ],
)
def test_wrong_options_are_refused(words, complaint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench.cluster", *words])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


# ---- on a lab -------------------------------------------------------------------------------------------------------


def test_a_job_returns_the_result_of_rank_0(lab):
    assert run_job(f"{HERE}:greet", lab, 60, word="hello") == {"rank": 0, "size": 2, "word": "hello", "lab": lab}


def greet(word: str, lab: str) -> dict[str, Any]:
    rank, size = launched_as()
    return {"rank": rank, "size": size, "word": word, "lab": lab}


def test_the_rank_that_failed_is_named(lab):
    with pytest.raises(SystemExit, match="rank 1: ValueError: no such word"):
        run_job(f"{HERE}:fail", lab, 60)


def fail(lab: str) -> None:
    if launched_as()[0] == 1:
        raise ValueError("no such word")
    time.sleep(60)


def test_a_job_that_hangs_is_ended(lab):
    with pytest.raises(SystemExit, match=r":hang did not end within 3 s, and was ended"):
        run_job(f"{HERE}:hang", lab, 3)


def hang(lab: str) -> None:
    time.sleep(600)


def test_without_a_lab_there_is_a_sentence(lab):
    with pytest.raises(SystemExit, match="no lab 'nosuchlab' is up"):
        run_job(f"{HERE}:greet", "nosuchlab", 60)


def test_dslide_on_a_lab(lab, folder):
    arguments = {"kind": "dslide", "rate": "1gbit", "folder": folder, "seed": 0, "batch_size": 64, "output": "full"}
    job = "bench.cluster.training"
    found = run_job(f"{job}:speed", lab, 60, seconds=0.3, least_steps=3, **arguments)
    assert found["steps"] >= 3
    assert found["samples_per_second"] == pytest.approx(64 / found["step_seconds"])
    assert 0 <= found["waiting"] <= 100
    # Half of the activations and of their gradients, 2 bytes each, is the least that each node can send.
    assert found["megabytes_per_step"] * 1e6 > 64 * HIDDEN * 2
    assert found["megabytes_per_step"] * 2e6 == pytest.approx(found["kilobytes_per_sample"] * 64e3)
    learned = run_job(f"{job}:curve", lab, 60, seconds=1.0, every=0.3, **arguments)
    assert [seconds for seconds, _ in learned["curve"]] == sorted(seconds for seconds, _ in learned["curve"])
    assert learned["curve"][-1] == [learned["seconds"], learned["p_at_1"]]
    assert learned["p_at_1"] > 0.2
    assert netlab.find(lab).rate == 10**9


def test_dense_gradients_on_a_lab(lab, folder):
    """Of two ranks each sends all gradients, half of them before and half after they are summed."""
    pytest.importorskip("torch")
    arguments = {"kind": "ddp", "rate": "1gbit", "folder": folder, "seed": 0, "batch_size": 32}
    found = run_job("bench.cluster.training:speed", lab, 120, seconds=0.5, least_steps=3, **arguments)
    parameters = HIDDEN * (FEATURES + LABELS) + LABELS
    assert found["megabytes_per_step"] * 1e6 == pytest.approx(4 * parameters, rel=0.15)  # with headers
    assert found["samples_per_second"] == pytest.approx(64 / found["step_seconds"])
    assert 0 <= found["waiting"] <= 100


def test_ranks_with_sparse_gradients_stay_alike_and_share_the_test(lab, folder):
    pytest.importorskip("torch")
    found = run_job(f"{HERE}:sampled", lab, 120, folder=folder)
    assert found["sums"][0] == found["sums"][1] != found["sum_before"]
    assert found["precision"] == pytest.approx(found["precision_alone"])
    assert found["precision"] > 0.2


def sampled(lab: str, folder: str) -> dict[str, Any]:
    from bench.cluster.ddp_rank import DdpRank

    test = load(Path(folder) / "test.txt")
    rank = DdpRank(load(Path(folder) / "train.txt"), seed=0, batch_size=32, negatives=256)
    weights = rank._network.output.weight
    before = float(weights.double().sum())
    for _ in range(60):
        rank.step()
    best = rank._network(test.x).argmax(1).numpy()
    hits = [best[i] in test.y.indices[test.y.indptr[i] : test.y.indptr[i + 1]] for i in range(len(test))]
    return {
        "sum_before": before,
        "sums": rank.gather(float(weights.double().sum())),
        "precision": rank.precision(test),
        "precision_alone": float(np.mean(hits)),
    }
