"""Charts of benchmarks: SVG files."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.lib.charts import BOX, LINE_HEIGHT, chart_svg

SVG = "{http://www.w3.org/2000/svg}"
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
