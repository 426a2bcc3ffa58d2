"""The experiment with a billion parameters: what it reads, computes and refuses, without training."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cluster import billion
from bench.cluster.billion import FULL, QUICK, STAGES, Network, Stage
from dslide import Config
from dslide.config import check_name
from dslide.planner.traffic import bytes_per_step

NETWORK = Network(16, "bf16")


@pytest.mark.parametrize("network", [*FULL.networks, *QUICK.networks], ids=str)
def test_options_are_those_of_dslide(network: Network) -> None:
    for name in network.options:
        check_name(name)
    config = Config(**network.options)
    assert (config.hidden, config.weights, config.moments) == ((network.hidden,), network.storage, network.storage)


def test_the_sizes_are_those_of_the_claim() -> None:
    """825 million parameters in 32 bits and 1.6 billion in 16, each in less than 24 GB on all nodes together."""
    for network, millions in zip(FULL.networks, (825, 1612), strict=True):
        planned = billion.planned(network, FULL, 0, 4)
        assert planned.parameters // 1e6 == pytest.approx(millions, abs=1)
        memory, disk = billion.space_needed(network, FULL, 0)
        assert 4 * planned.bytes_total <= memory < 24e9
        assert disk > 2 * planned.parameters * (12 if network.storage == "float32" else 6)


@pytest.mark.parametrize(
    ("needed", "there", "words"),
    [
        ((10, 10), (10, 10), ""),
        ((11 * 10**9, 1), (10**10, 1), "hidden 16 in bf16 needs 11 GB of memory, and 10 GB are available"),
        ((1, 11 * 10**9), (1, 10**10), "hidden 16 in bf16 needs 11 GB of disk in out, and 10 GB are free"),
    ],
)
def test_without_memory_or_disk_it_is_refused(needed: tuple[int, int], there: tuple[int, int], words: str) -> None:
    assert billion.refusal(NETWORK, needed, there, Path("out")) == words


def test_some_rows_are_a_file_of_their_own(tmp_path: Path) -> None:
    source, target = tmp_path / "all.txt", tmp_path / "some.txt"
    source.write_text("3 5 4\n0 1:1\n1 2:1\n2 3:1\n")
    billion.first_rows(source, target, 2)
    assert target.read_text() == "2 5 4\n0 1:1\n1 2:1\n"
    billion.first_rows(source, target, 9)
    assert target.read_text() == source.read_text()


def test_the_output_of_evaluate_is_parsed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With the real output of the command, for a tiny network."""
    from dslide.cli import main
    from dslide.data import synthesize

    synthesize(tmp_path / "data", rows=60, features=30, labels=20, test_rows=10, seed=0)
    train, test = str(tmp_path / "data/train.txt"), str(tmp_path / "data/test.txt")
    assert main(["train", train, "--out", str(tmp_path / "run"), "--epochs=1", "--threads=1", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), test, "--k", "1", "--threads", "1"]) == 0
    found = billion.evaluation(capsys.readouterr().out)
    assert 0 <= found["p_at_1"] <= 1
    assert found["rows_per_second"] > 0


def stage_results(stage: Stage, before: Stage | None, loss: float = 2.0) -> dict:
    """Of an invented run of 10 steps an epoch, in which the larger of two ranks held 900 of 1,000 planned bytes."""
    summary = {
        "steps": 10 * stage.epochs, "epochs": stage.epochs, "config": Config(**NETWORK.options).to_dict(),
        "labels": 9000, "per_rank": [{"peak_rss_bytes": 900}, {"peak_rss_bytes": 800}], "parameters": 7,
        "comm_seconds": 1.0, "seconds": 4.0, "active_neurons_mean": 50, "bytes_sent_per_step": 300,
        "planned_bytes": 1000,
    }  # fmt: skip
    log = [{"record": "epoch", "samples_per_second": 100, "loss": 3.0}, {"record": "step", "loss": 9.0}]
    log.append({"record": "epoch", "samples_per_second": 200, "loss": loss})
    more = {"whole_seconds": 1.0, "checkpoint_seconds": 0.5, "checkpoint_bytes": 5e9}
    return billion.results(summary, log, stage, before, sent=1000.0) | more


def test_results_of_a_resumed_run_are_of_its_own_steps() -> None:
    first, second = stage_results(STAGES[0], None), stage_results(STAGES[1], STAGES[0])
    assert first["bytes_on_wire"] == 1000 / 20
    assert second["bytes_on_wire"] == 1000 / 10
    assert first["bytes_by_formula"] == bytes_per_step(Config(**NETWORK.options), 9000, 4)
    assert (first["samples_per_second"], first["loss"], first["first_loss"]) == (200, 2.0, 3.0)
    assert (first["waiting"], first["peak_bytes"], first["peak_bytes_of_all"]) == (0.25, 900, 1700)
    assert first["peak_over_plan"] == 0.9


def test_the_report_says_whether_it_learned_and_fitted() -> None:
    prediction = {"rows": 10, "rows_per_second": 5, "p_at_1": 0.5, "whole_seconds": 3}
    prediction |= {"peak_bytes": 1, "peak_bytes_of_all": 4}

    def found(loss: float) -> dict:
        befores = (None, *STAGES)
        stages = [stage_results(stage, before, loss) for stage, before in zip(STAGES, befores, strict=False)]
        return {"hidden": 16, "storage": "bf16", "plan": "plan: 7", "stages": stages, "prediction": prediction}

    report = billion.markdown([found(2.0), found(2.5)], QUICK)
    assert "the loss falls from the first epoch to the last" in report
    assert "memory differs from the plan by -10.0% at most, within the 10% allowed" in report
    assert "| 7, hidden 16, bf16 | trains: 4, 1gbit | 200 | 25% | 50 | 2.250 (2.000 to 2.500) |" in report
    assert "- hidden 16, bf16: plan: 7" in report
    assert "**does not fall**" in billion.markdown([found(2.0), found(3.0)], QUICK)
