"""The accuracy benchmark on tiny sets: which sets a folder has, runs, the table of all sets."""

from __future__ import annotations

import argparse
import json
import lzma
import math
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from integration.test_recipes import make_interactions, make_tokens, make_tsv, make_xmc

from bench.accuracy import __main__ as command
from bench.accuracy import ablation, sets
from bench.accuracy.comparison import curves
from bench.accuracy.peers import read_rows
from bench.accuracy.sets import LABELLED, find_sets
from bench.accuracy.table import PARABEL, overview, seconds_to, to_parabel
from bench.accuracy.words import write_bag_of_words
from bench.lib.commands import as_arguments
from bench.lib.processes import ROOT, Outcome, System, installed, run_rounds
from bench.lib.sections import Metric, Section
from dslide.config import Config, load_toml
from dslide.data import load

SVG = "{http://www.w3.org/2000/svg}"
GND = load_toml(ROOT / "recipes/gnd.toml")
TWO_COLUMNS = {"label_column": 1, "text_column": 2}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder with files like those of GND, but tiny."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for part, rows, seed in (("train", 200, 0), ("test", 30, 1)):
        make_tsv(tmp_path / "plain", GND, rows, seed)
        (folder / f"gnd.{part}.tsv.xz").write_bytes(lzma.compress((tmp_path / "plain").read_bytes()))
    return folder


def run(data: Path, out: Path, **options: Any) -> int:
    """The command, with one seed and few epochs."""
    given = {"sets": None, "only": [], "seeds": [3], "quick": True, "peers_python": sys.executable, **options}
    return command.run(argparse.Namespace(data=data, out=out, **given))


# ---- sets of a folder ------------------------------------------------------------------------------------------------


def test_every_pair_of_files_is_a_set(raw: Path, tmp_path: Path) -> None:
    for name in ("mine/train.txt", "mine/test.txt", "other.train.txt", "other.test.txt"):
        (raw / name).parent.mkdir(exist_ok=True)
        make_xmc(raw / name, {}, 20, 0)
    for name in ("words.train.tsv", "words.test.tsv"):
        make_tsv(raw / name, TWO_COLUMNS, 20, 0)
    for part in ("trn", "tst"):
        (raw / "pecos").mkdir(exist_ok=True)
        for matrix in "XY":
            sp.save_npz(raw / f"pecos/{matrix}.{part}.npz", sp.identity(20, np.float32, "csr"))
    for name in ("gowalla.train.txt", "gowalla.test.txt"):
        make_interactions(raw / name, {}, 20, 0)
    make_tokens(raw / "text8like.txt.xz", {}, 20, 0)
    make_xmc(raw / "alone.train.txt", {}, 20, 0)  # has no test file
    (raw / "notes.txt").write_text("no set\n")
    found = find_sets(raw, tmp_path)
    about = {name: (each.format, each.recipe.name if each.recipe else None) for name, each in found.items()}
    assert about == {
        "gnd": ("tsv", "gnd.toml"),
        "gowalla": ("interactions", "gowalla.toml"),
        "mine": ("xmc", None),
        "other": ("xmc", None),
        "pecos": ("npz", None),
        "text8": ("tokens", "text8.toml"),
        "words": ("tsv", None),
    }
    assert found["mine"].train == (raw / "mine/train.txt").resolve()
    assert found["mine"].test == (raw / "mine/test.txt").resolve()
    assert found["text8"].test is None
    assert [name for name, each in found.items() if each.kind.labelled] == ["gnd", "mine", "other", "pecos", "words"]
    assert found["gnd"].reading == {name: GND[name] for name in ("format", "label_column", "text_column")}
    assert found["mine"].reading == {}


def test_a_recipe_is_for_files_of_its_format(tmp_path: Path) -> None:
    (tmp_path / "gnd").mkdir()
    for part in ("train", "test"):
        make_xmc(tmp_path / f"gnd/{part}.txt", {}, 20, 0)  # the recipe is for tsv
    assert find_sets(tmp_path, tmp_path)["gnd"].recipe is None


def test_two_sets_of_a_name_are_refused(raw: Path, tmp_path: Path) -> None:
    (raw / "gnd").mkdir()
    for part in ("train", "test"):
        make_xmc(raw / f"gnd/{part}.txt", {}, 20, 0)
    with pytest.raises(SystemExit, match="are the set gnd: rename one of them"):
        find_sets(raw, tmp_path)


def test_sets_that_are_missing_are_named(raw: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SystemExit, match="contains no set"):
        run(empty, tmp_path / "out")
    with pytest.raises(SystemExit, match="is not a folder"):
        run(tmp_path / "absent", tmp_path / "out")
    with pytest.raises(SystemExit, match=r"eurlex57k: there is no such set in .*, only gnd"):
        run(raw, tmp_path / "out", sets=["eurlex57k"])
    (raw / "gnd.test.tsv.xz").unlink()
    make_xmc(raw / "a.train.txt", {}, 20, 0)
    make_xmc(raw / "a.test.txt", {}, 20, 0)
    with pytest.raises(SystemExit, match=r"ablation: .* lacks the files of the recipe gnd"):
        run(raw, tmp_path / "out", only=["ablation"])


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_sets_with_and_without_recipe_from_files_to_report_and_charts(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "TREES", (2,))
    (raw / "mine").mkdir()
    make_xmc(raw / "mine/train.txt", {}, 200, 0)
    make_xmc(raw / "mine/test.txt", {}, 30, 1)
    assert run(raw, tmp_path / "out") == 0
    report = (tmp_path / "out/report.md").read_text()
    assert report in capsys.readouterr().out
    assert "`dslide train gnd.train.tsv.xz --test gnd.test.tsv.xz --format tsv --label-column 3" in report
    assert "recipe: `--config recipes/gnd.toml`" in report
    assert "![P@1 over seconds of training](mine.svg)" in report
    gnd, mine = json.loads((tmp_path / "out/report.json").read_text())["sections"]
    ours = ["dslide, defaults", "dslide, --ranking propensity"]
    peers = ["Parabel, 2 trees", "PECOS, XR-Linear"]
    assert [system["name"] for system in gnd["systems"]] == [*ours, "dslide, recipe", *peers]
    assert [system["name"] for system in mine["systems"]] == [*ours, *peers]
    for system in gnd["systems"] + mine["systems"]:
        if system["name"] in peers:
            assert system["problem"] == "not installed" or system["rounds"][0]["p_at_1"] > 0.9
            continue
        (found,) = system["rounds"]
        assert len(found["curve"]) == sets.QUICK_EPOCHS
        assert found["curve"][-1] == [found["seconds"], found["p_at_1"]]
        assert 0 < found["peak_gigabytes"] < 5
        assert found["config"]["ranking"] == ("propensity" if "propensity" in system["name"] else "precision")
        assert set(system["summary"]) >= {f"{name}_at_{k}" for name in ("p", "psp", "ndcg") for k in (1, 3, 5)}
    table = report[: report.index("## gnd")]
    assert "| **gnd** | dslide, defaults | " in table
    assert "| **mine** | dslide, defaults | " in table
    chart = ET.parse(tmp_path / "out/gnd.svg").getroot()
    assert {"dslide, recipe", "dslide, defaults"} <= {text.text for text in chart.iter(f"{SVG}text")}
    assert not list((tmp_path / "out").glob("tmp*"))  # runs leave nothing behind


def test_an_ablation_changes_one_thing_at_a_time(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {"as the recipe": {}, "labels of the batch only": ablation.ABLATION["labels of the batch only"]}
    monkeypatch.setattr(ablation, "ABLATION", some)
    assert run(raw, tmp_path / "out", only=["ablation"]) == 0
    (section,) = json.loads((tmp_path / "out/ablation/report.json").read_text())["sections"]
    assert [system["name"] for system in section["systems"]] == list(some)
    assert all(system["summary"]["active_neurons_mean"]["median"] > 0 for system in section["systems"])
    assert "| active outputs |" in capsys.readouterr().out


def test_every_ablation_is_of_options_that_there_are() -> None:
    for changes in ablation.ABLATION.values():
        Config().replace(**changes)


def test_kept_results_are_not_measured_again_unless_the_options_differ(raw: Path, tmp_path: Path) -> None:
    (data,) = find_sets(raw, tmp_path, quick=True).values()
    system = data.defaults()
    (before,) = run_rounds([system], [0])[system].rounds
    (after,) = run_rounds([system], [0])[system].rounds
    assert after == before  # the seconds too
    (other_seed,) = run_rounds([system], [1])[system].rounds
    assert other_seed["seconds"] != before["seconds"]
    assert data.defaults().kept == system.kept
    assert data.defaults(changes={"hidden": 8}).kept != system.kept
    data.train.write_bytes(lzma.compress(b"a\tb\tc\td\n" * 300))
    assert data.defaults().kept != system.kept


def test_packages_are_looked_for_in_the_given_python(tmp_path: Path) -> None:
    assert installed("numpy", sys.executable)
    assert not installed("no_such_package", sys.executable)
    assert not installed("numpy", "/bin/false")  # what a Python without it returns
    absent = System("peer", "none:none", {}, "numpy", python="/bin/false")
    assert run_rounds([absent], [0])[absent].problem == "not installed"


def test_options_become_arguments_of_the_command_line() -> None:
    options = {"hold_out": 0.1, "correction": False, "sublinear": True, "output": "lsh", "hidden": (64, 32)}
    expected = ["--hold-out=0.1", "--no-correction", "--sublinear", "--output=lsh", "--hidden=64,32"]
    assert as_arguments(options) == expected


# ---- rows of peers ---------------------------------------------------------------------------------------------------


def test_peers_get_the_rows_that_the_recipe_sees(raw: Path, tmp_path: Path) -> None:
    train, test = raw / "gnd.train.tsv.xz", raw / "gnd.test.tsv.xz"
    write_bag_of_words(GND, train, test, tmp_path / "words")
    columns = {"label_column": GND["label_column"], "text_column": GND["text_column"]}
    seen = load(train, **columns)
    written, written_test = load(tmp_path / "words/train.txt", base=0), load(tmp_path / "words/test.txt", base=0)
    assert (len(written), written.labels, len(written_test)) == (200, 12, 30)
    assert written.features == written_test.features == seen.features
    np.testing.assert_array_equal(written.x.indices, seen.x.indices)
    np.testing.assert_allclose(written.x.values, seen.x.values, rtol=1e-5)
    np.testing.assert_array_equal(written.y.indices, seen.y.indices)
    np.testing.assert_array_equal(written.y.indptr, seen.y.indptr)


def test_peers_get_rows_that_are_no_text_as_they_are(tmp_path: Path) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, seed in zip(files, (0, 1), strict=True):
        make_xmc(path, {}, 20, seed)
    write_bag_of_words({"format": "xmc"}, *files, tmp_path / "words")
    seen, written = load(files[0]), load(tmp_path / "words/train.txt", base=0)
    np.testing.assert_array_equal(written.x.indices, seen.x.indices)
    np.testing.assert_array_equal(written.y.indices, seen.y.indices)


def test_peers_get_indices_from_0_and_all_features_of_the_training_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1,2 1:.5 4:1\n3 2:1\n")  # libsvm, counted from 1
    (tmp_path / "b.txt").write_text("3 1:1\n")
    write_bag_of_words({}, tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "words")
    assert (tmp_path / "words/train.txt").read_text() == "2 4 3\n0,1 0:0.5 3:1\n2 1:1\n"
    assert (tmp_path / "words/test.txt").read_text() == "1 4 3\n2 0:1\n"


def test_peers_read_what_was_written(tmp_path: Path) -> None:
    make_xmc(tmp_path / "a.txt", {}, 20, 0)
    write_bag_of_words({}, tmp_path / "a.txt", tmp_path / "a.txt", tmp_path / "words")
    seen = load(tmp_path / "a.txt")
    x, y = read_rows(str(tmp_path / "words/train.txt"))
    np.testing.assert_array_equal(x.toarray(), seen.x.to_scipy().toarray())
    np.testing.assert_array_equal(y.toarray(), seen.y.to_scipy().toarray())
    (tmp_path / "none.txt").write_text("3 2 2\n\n 1:0.5\n1\n")  # nothing, only features, only labels
    x, y = read_rows(str(tmp_path / "none.txt"))
    assert x.toarray().tolist() == [[0, 0], [0, 0.5], [0, 0]]
    assert y.toarray().tolist() == [[0, 0], [0, 0], [0, 1]]


# ---- table and curves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([[2, 0.3], [4, 0.5], [9, 0.6]], 4),
        ([[2, 0.5], [4, 0.4], [9, 0.6]], 2),  # the first time
        ([[2, 0.1], [4, 0.49], [9, 0.5]], 9),
        ([[2, 0.1], [4, 0.2]], math.inf),
        ([[2, 0.6], [4, 0.4]], math.inf),  # got worse: that network is not what the run ends with
    ],
)
def test_the_time_to_an_accuracy_is_that_of_the_first_point(curve: list[list[float]], expected: float) -> None:
    assert seconds_to(curve, 0.5) == expected


def made(name: str, curves: list[list[list[float]]]) -> tuple[System, Outcome]:
    """A system with invented results: every metric has the value of the curve's end."""
    rounds = [
        {metric.key: points[-1][1] for metric in LABELLED.metrics}
        | {"seconds": points[-1][0], "peak_gigabytes": 1.0, "curve": points}
        for points in curves
    ]
    return System(name, "x:y", {"name": name}), Outcome(rounds)  # type: ignore[arg-type]


def test_rounds_are_compared_with_parabel_in_the_same_round() -> None:
    _, ours = made("dslide, defaults", [[[1, 0.3], [4, 0.6]], [[2, 0.5], [5, 0.6]]])
    _, parabel = made(PARABEL, [[[10, 0.5]], [[20, 0.4]]])
    assert to_parabel(ours, parabel) == [(4, 0.4), (2, 0.1)]
    assert to_parabel(ours, Outcome(problem="not installed")) == []


def test_the_table_has_a_row_for_each_set_and_system() -> None:
    outcomes = dict(
        [
            made("dslide, defaults", [[[1, 0.3], [4, 0.6]], [[2, 0.5], [5, 0.65]], [[2, 0.1], [6, 0.3]]]),
            made("dslide, recipe", [[[3, 0.1]], [[3, 0.2]], [[3, 0.3]]]),
            made(PARABEL, [[[10, 0.5]], [[20, 0.4]], [[10, 0.5]]]),
        ]
    )
    absent = System("PECOS, XR-Linear", "x:y", {})
    users = System("dslide, defaults", "x:y", {"users": True})
    outcomes |= {absent: Outcome(problem="not installed")}
    outcomes |= {users: Outcome([{"r_at_20": 0.2, "ndcg_at_20": 0.1, "seconds": 3.0, "peak_gigabytes": 0.5}])}
    systems = list(outcomes)
    sections = [Section("news", "", systems[:4], []), Section("places", "", [users], [])]
    kinds = {"news": LABELLED, "places": sets.KINDS["interactions"]}
    lines = overview(sections, kinds, outcomes).splitlines()
    spread = ".600 / .600 / .600 (.300 to .650)"
    assert lines[4:] == [
        f"| **news** | dslide, defaults | {spread} | {spread} | {spread} | 5.0 (4.0 to 6.0) | 1.00 "
        "| 4.0 (2.0 to -) | 0.40 (0.10 to -) |",
        "|  | dslide, recipe | .200 / .200 / .200 (.100 to .300) | .200 / .200 / .200 (.100 to .300) "
        "| .200 / .200 / .200 (.100 to .300) | 3.0 | 1.00 | - | - |",
        "|  | Parabel, 3 trees | .500 / .500 / .500 (.400 to .500) | .500 / .500 / .500 (.400 to .500) "
        "| .500 / .500 / .500 (.400 to .500) | 10.0 (10.0 to 20.0) | 1.00 | 10.0 (10.0 to 20.0) | 1.00 |",
        "|  | PECOS, XR-Linear | not installed |  |  |  |  |  |  |",
        "| **places** | dslide, defaults | R@20 0.2000, nDCG@20 0.1000 |  |  | 3.0 | 0.50 |  |  |",
    ]


def test_curves_are_medians_and_trees_are_one_line() -> None:
    ours = System("dslide, recipe", "x:y", {})
    early = System("dslide, defaults", "x:y", {"early": True})
    trees = [System(f"Parabel, {n} trees", "x:y", {"trees": n}) for n in (1, 2)]
    absent = System("absent", "x:y", {})
    outcomes = {
        ours: Outcome([{"curve": [[s, 0.1], [2 * s, p]]} for s, p in ((1, 0.3), (5, 0.2), (2, 0.9))]),  # type: ignore[dict-item]
        early: Outcome([{"curve": [[1, 0.1], [2, 0.2], [9, 0.5]]}, {"curve": [[1, 0.1], [3, 0.5]]}]),  # type: ignore[dict-item]
        trees[0]: Outcome([{"curve": [[7, 0.5]]}]),  # type: ignore[dict-item]
        trees[1]: Outcome([{"curve": [[14, 0.6]]}]),  # type: ignore[dict-item]
        absent: Outcome(problem="not installed"),
    }
    section = Section("", "", [ours, early, *trees, absent], [Metric("seconds", "seconds")])
    assert curves(section, outcomes) == {
        "dslide, recipe": [(2, 0.1), (4, 0.3)],
        "dslide, defaults": [(1, 0.1), (6, 0.5)],  # the last point of each
        "Parabel, 1 to 3 trees": [(7, 0.5), (14, 0.6)],
        "absent": [],
    }
