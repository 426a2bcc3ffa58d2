"""The check of constants with each set left out: the arithmetic on invented results, and runs on tiny sets."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.test_recipes import make_interactions, make_xmc

from bench.accuracy import __main__ as command
from bench.accuracy.constants import CONSTANTS, DEFAULT, changed, leave_one_out, report
from dslide.config import Config


def result(precision: float, hidden: int = 8, seconds: float = 1.0) -> dict[str, Any]:
    """An invented result whose P@1, P@3 and P@5 have this mean."""
    return {
        "p_at_1": precision + 0.1, "p_at_3": precision, "p_at_5": precision - 0.1,
        "seconds": seconds, "config": {"hidden": [hidden]},
    }  # fmt: skip


def results(**scores: tuple[float, float, float]) -> dict[str, dict[float, dict[str, Any]]]:
    """Of sets with the default, half of it and twice of it."""
    factors = (DEFAULT, 0.5, 2)
    return {
        name: {factor: result(each, int(8 * factor)) for factor, each in zip(factors, of_set, strict=True)}
        for name, of_set in scores.items()
    }


def test_each_set_gets_what_the_others_choose() -> None:
    # twice is best on the mean of all three and of b and c, but not of a and c, nor of a and b
    found = leave_one_out(results(a=(0.50, 0.30, 0.40), b=(0.20, 0.24, 0.50), c=(0.60, 0.59, 0.55)))
    assert [(choice.left_out, choice.chosen, choice.own_best) for choice in found] == [
        ("a", 2, DEFAULT),
        ("b", DEFAULT, 2),
        ("c", 2, DEFAULT),
    ]
    assert [choice.gain for choice in found] == pytest.approx([-0.10, 0, -0.05])
    assert [choice.regret for choice in found] == pytest.approx([0.10, 0.30, 0.05])


def test_the_default_is_kept_where_others_are_only_as_good() -> None:
    found = leave_one_out(results(a=(0.5, 0.5, 0.5), b=(0.25, 0.25, 0.25)))
    assert all(choice.chosen == choice.own_best == DEFAULT for choice in found)
    assert all(choice.gain == choice.regret == 0 for choice in found)


def test_the_report_shows_chosen_default_and_own_best() -> None:
    found = {"hidden": results(a=(0.50, 0.30, 0.40), b=(0.20, 0.24, 0.50), c=(0.60, 0.59, 0.55))}
    lines = report(found, ["d"]).splitlines()
    assert "Left out of all, because a run failed: d." in lines
    assert "| hidden | 1 of 3 | -5.00 | -10.00 to +0.00 | +15.00 | +30.00 |" in lines
    default, chosen = ".600 / .500 / .400", ".500 / .400 / .300"
    assert f"| a | times 2 (16) | {chosen} | {default} | -10.00 | default (8): {default} | +10.00 |" in lines
    assert "| b | default (8): 0.2000, 1.0 s | times 0.5 (4): 0.2400, 1.0 s | times 2 (16): 0.5000, 1.0 s |" in lines


def test_a_factor_that_changes_nothing_on_a_set_is_called_unused() -> None:
    same = {factor: result(0.5) for factor in (DEFAULT, 0.5, 2)}
    lines = report({"hidden": {"full": same} | results(a=(0.1, 0.2, 0.3))}).splitlines()
    shown = ".600 / .500 / .400"
    assert f"| full | times 2 (unused) | {shown} | {shown} | +0.00 | default (8): {shown} | +0.00 |" in lines


def test_options_are_changed_by_factors() -> None:
    config = {"hidden": [256, 3], "epochs": 3, "dropout_hidden": 0.1, "prior_hits": 1}
    assert changed(config, "hidden", 0.5) == [128, 2]
    assert changed(config, "epochs", 0.5) == 2
    assert changed(config, "dropout_hidden", 3) == 0.3
    assert changed(config, "dropout_hidden", 0) == 0
    assert changed(config, "prior_hits", 0.5) == 1


def test_every_constant_is_an_option() -> None:
    assert set(CONSTANTS) <= set(Config().to_dict())


def test_sets_are_trained_once_with_rows_held_out_of_training(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for seed, name in enumerate(("a", "b")):
        make_xmc(data / f"{name}.train.txt", {}, 200, seed)
        (data / f"{name}.test.txt").write_text("3 15 12\nnot read\n")
    make_interactions(data / "gowalla.train.txt", {}, 30, 0)  # has no P@k, and is not trained on
    make_interactions(data / "gowalla.test.txt", {}, 30, 1)
    out = tmp_path / "out"
    options = argparse.Namespace(
        data=data, out=out, sets=None, only=["hidden", "random_negatives"], seeds=[0], quick=True,
        peers_python=sys.executable,
    )  # fmt: skip
    assert command.run(options) == 0
    written = json.loads((out / "constants/report.json").read_text())
    assert {option: list(sets) for option, sets in written["results"].items()} == {
        "hidden": ["a", "b"],
        "random_negatives": ["a", "b"],
    }
    hidden = written["results"]["hidden"]["a"]
    assert [hidden[factor]["config"]["hidden"] for factor in ("0.5", "1.0", "2")] == [[128], [256], [512]]
    assert all("curve" in each and each["p_at_1"] > 0 for each in hidden.values())
    runs = sorted(path for path in out.glob("results/*/*/*.json"))
    assert len(runs) == 2 * 3  # random negatives have no use with 12 labels: all outputs are computed
    before = [path.stat().st_mtime_ns for path in runs]
    assert command.run(options) == 0
    assert [path.stat().st_mtime_ns for path in runs] == before  # taken from the kept results


def test_one_set_can_not_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_xmc(tmp_path / "a.train.txt", {}, 100, 0)
    make_xmc(tmp_path / "a.test.txt", {}, 100, 1)
    options = argparse.Namespace(
        data=tmp_path, out=tmp_path / "out", sets=None, only=["hidden"], seeds=[0], quick=True,
        peers_python=sys.executable,
    )  # fmt: skip
    assert command.run(options) == 1
    assert "two or more sets" in capsys.readouterr().err
