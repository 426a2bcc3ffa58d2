"""The accuracy benchmark on tiny raw files, and its charts."""

from __future__ import annotations

import itertools
import json
import lzma
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integration.test_recipes import make_tsv, make_xmc

from bench.accuracy import recipes
from bench.accuracy.runs import write_bag_of_words
from bench.lib.charts import BOX, LINE_HEIGHT, chart_svg
from bench.lib.commands import as_arguments
from bench.lib.processes import Outcome, System
from bench.lib.sections import Metric, Section
from dslide.config import load_toml
from dslide.data import load

SVG = "{http://www.w3.org/2000/svg}"
GND = load_toml(recipes.ROOT / "recipes/gnd.toml")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder with files like those of GND, but tiny."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for name, rows, seed in zip(recipes.RAW["gnd"], (200, 30), (0, 1), strict=True):
        make_tsv(tmp_path / "plain", GND, rows, seed)
        (folder / name).write_bytes(lzma.compress((tmp_path / "plain").read_bytes()))
    return folder


def test_a_recipe_from_raw_files_to_report_and_chart(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "TREES", (2,))
    assert recipes.run(raw, None, [3], True, tmp_path / "out") == 0
    report = (tmp_path / "out/report.md").read_text()
    assert report in capsys.readouterr().out
    assert "`dslide train gnd.train.tsv.xz --test gnd.test.tsv.xz --config recipes/gnd.toml`" in report
    assert "![P@1 over seconds of training](gnd.svg)" in report
    (section,) = json.loads((tmp_path / "out/report.json").read_text())["sections"]
    recipe, defaults, full, parabel, pecos = section["systems"]
    assert [s["name"] for s in (recipe, defaults, full)] == [
        "dslide, recipe",
        "dslide, defaults",
        "dslide, recipe, all outputs",
    ]
    for system in (recipe, defaults, full):
        (run,) = system["rounds"]
        assert len(run["curve"]) == recipes.QUICK_EPOCHS
        assert run["curve"][-1] == [run["seconds"], run["p_at_1"]]
        assert 0 < run["peak_gigabytes"] < 5
    for peer in (parabel, pecos):
        assert peer["problem"] == "not installed" or peer["rounds"][0]["p_at_1"] > 0.9
    chart = ET.parse(tmp_path / "out/gnd.svg").getroot()
    assert {"dslide, recipe", "dslide, defaults"} <= {text.text for text in chart.iter(f"{SVG}text")}
    assert not list((tmp_path / "out").glob("tmp*"))  # runs leave nothing behind


def test_an_ablation_changes_one_thing_at_a_time(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {"as the recipe": {}, "labels of the batch only": recipes.ABLATION["labels of the batch only"]}
    monkeypatch.setattr(recipes, "ABLATION", some)
    assert recipes.run(raw, ["ablation"], [0], True, tmp_path / "out") == 0
    (section,) = json.loads((tmp_path / "out/report.json").read_text())["sections"]
    assert [system["name"] for system in section["systems"]] == list(some)
    assert all(system["summary"]["active_neurons_mean"]["median"] > 0 for system in section["systems"])
    assert "| active outputs |" in capsys.readouterr().out


def test_every_ablation_is_of_options_that_there_are() -> None:
    from dslide.config import Config

    for changes in recipes.ABLATION.values():
        Config().replace(**changes)


def test_files_that_are_missing_are_named(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="contains no files of any recipe, such as gnd"):
        recipes.run(tmp_path, None, [0], True, tmp_path / "out")
    with pytest.raises(SystemExit, match=r"eurlex57k: the recipe, or its files in .*, are missing"):
        recipes.run(raw, ["eurlex57k"], [0], True, tmp_path / "out")
    (raw / recipes.RAW["gnd"][1]).unlink()
    with pytest.raises(SystemExit, match="ablation: the recipe, or its files"):
        recipes.run(raw, ["ablation"], [0], True, tmp_path / "out")


def test_peers_get_the_rows_that_the_recipe_sees(raw: Path, tmp_path: Path) -> None:
    train, test = (raw / name for name in recipes.RAW["gnd"])
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
    recipe = {"format": "xmc"}
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, seed in zip(files, (0, 1), strict=True):
        make_xmc(path, recipe, 20, seed)
    write_bag_of_words(recipe, *files, tmp_path / "words")
    seen, written = load(files[0]), load(tmp_path / "words/train.txt", base=0)
    np.testing.assert_array_equal(written.x.indices, seen.x.indices)
    np.testing.assert_array_equal(written.y.indices, seen.y.indices)


def test_options_become_arguments_of_the_command_line() -> None:
    options = {"hold_out": 0.1, "correction": False, "sublinear": True, "output": "lsh", "hidden": (64, 32)}
    expected = ["--hold-out=0.1", "--no-correction", "--sublinear", "--output=lsh", "--hidden=64,32"]
    assert as_arguments(options) == expected


def test_curves_are_medians_and_trees_are_one_line() -> None:
    ours = System("dslide, recipe", "x:y", {})
    trees = [System(f"Parabel, {n} trees", "x:y", {"trees": n}) for n in (1, 2)]
    absent = System("absent", "x:y", {})
    outcomes = {
        ours: Outcome([{"curve": [[s, 0.1], [2 * s, p]]} for s, p in ((1, 0.3), (5, 0.2), (2, 0.9))]),  # type: ignore[dict-item]
        trees[0]: Outcome([{"curve": [[7, 0.5]]}]),  # type: ignore[dict-item]
        trees[1]: Outcome([{"curve": [[14, 0.6]]}]),  # type: ignore[dict-item]
        absent: Outcome(problem="not installed"),
    }
    section = Section("", "", [ours, *trees, absent], [Metric("seconds", "seconds")])
    assert recipes.curves(section, outcomes) == {
        "dslide, recipe": [(2, 0.1), (4, 0.3)],
        "Parabel, 1 to 3 trees": [(7, 0.5), (14, 0.6)],
        "absent": [],
    }


# ---- charts ----------------------------------------------------------------------------------------------------------

points = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 30)), max_size=6)


@given(curves=st.dictionaries(st.text("ab<&>\"' ", min_size=1, max_size=8), points, max_size=6))
@settings(deadline=None, max_examples=50)
def test_charts_are_well_formed_and_nothing_overlaps_or_leaves_them(curves: dict) -> None:
    root = ET.fromstring(chart_svg("a < b", "P@1", curves))
    texts = [(float(t.get("x")), float(t.get("y")), t.text) for t in root.iter(f"{SVG}text")]
    assert all(0 <= x <= BOX.width and 0 < y < BOX.height for x, y, _ in texts)
    for line in root.iter(f"{SVG}polyline"):
        places = [tuple(map(float, place.split(","))) for place in line.get("points").split()]
        assert all(0 <= x <= BOX.width and 0 <= y <= BOX.height for x, y in places)
    shown = [name for name, found in curves.items() if found]
    labels = sorted((y, text) for x, y, text in texts if x == BOX.width - BOX.right + 24 and text[0].isdigit())
    assert sorted(text.split(" ", 1)[1] for _, text in labels) == sorted(shown)
    assert all(b[0] - a[0] >= LINE_HEIGHT - 0.2 for a, b in itertools.pairwise(labels))
    ticks = [float(text.replace(",", "")) for x, y, text in texts if y == BOX.height - BOX.bottom + 15]
    assert ticks == sorted(set(ticks))
    assert len(ticks) >= 2


@given(curves=st.dictionaries(st.sampled_from("abc"), points), log_x=st.booleans())
@settings(deadline=None, max_examples=50)
def test_axes_are_named_and_have_ticks_around_the_points(curves: dict, log_x: bool) -> None:
    root = ET.fromstring(chart_svg("title", "samples/s", curves, "rows < all", log_x))
    texts = [(float(t.get("x")), float(t.get("y")), t.text) for t in root.iter(f"{SVG}text")]
    assert {"rows < all", "samples/s"} <= {text for *_, text in texts}
    ticks = [float(text.replace(",", "")) for _, y, text in texts if y == BOX.height - BOX.bottom + 15]
    assert ticks == sorted(set(ticks))
    every = [max(x, 1e-3) if log_x else x for found in curves.values() for x, _ in found]
    assert all(ticks[0] <= x * (1 + 1e-6) + 1e-9 and x <= ticks[-1] * (1 + 1e-6) for x in every)


def test_a_linear_axis_has_equal_distances() -> None:
    root = ET.fromstring(
        chart_svg("", "samples/s", {"a": [(0, 500), (4, 1000), (8, 12_345)]}, "hash_hits", False, True)
    )
    line = next(line for line in root.iter(f"{SVG}polyline") if line.get("class").startswith("line c0 "))
    x1, x2, x3 = (float(place.split(",")[0]) for place in line.get("points").split())
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "12,345 a" in texts
    assert texts.count("0") == 2  # both axes begin with it


def test_positions_follow_the_values() -> None:
    root = ET.fromstring(chart_svg("", "P@1", {"a": [(10, 0.2), (1, 0.1), (100, 0.3)]}))
    line = next(line for line in root.iter(f"{SVG}polyline") if line.get("class").startswith("line c0 "))
    (x1, y1), (x2, y2), (x3, y3) = (tuple(map(float, place.split(","))) for place in line.get("points").split())
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)  # powers of ten are as far apart
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    assert x1 < x2
    assert y1 > y2  # upwards
