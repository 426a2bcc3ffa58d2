"""Reports: what of a run is on the page, and how damaged, strange or very long folders are handled."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import support.run_folders as made
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide.cli import main
from dslide.data import synthesize
from dslide.errors import ConfigError, DataError
from dslide.report import write_report
from dslide.report.charts import BYTES, TIME, unit
from dslide.report.curve import BINS, Curve, smoothed
from dslide.report.history import RunHistory, read_run
from dslide.report.svg import Axis, LogAxis, round_ticks

TITLES = ("P@1", "R@5", "Loss over time", "Loss over samples", "Test loss", "Speed", "Sent in a step", "Waiting",
          "Active neurons", "Labels found", "Memory", "Ranks", "Bucket occupancy", "Phases of a step")  # fmt: skip
VOID = {"meta", "br", "input"}


class Page(HTMLParser):
    """The page, taken apart; every tag must be closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.texts.append(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def lines(self) -> list[str]:
        """The points of every line."""
        return [str(a["points"]) for tag, a in self.tags if tag == "polyline" and str(a["class"]).startswith("line ")]


def report(tmp_path: Path, *runs: Path) -> Page:
    write_report(runs, tmp_path / "report.html")
    return Page((tmp_path / "report.html").read_text())


# ---- what is on the page ---------------------------------------------------------------------------------------------


def test_two_runs_have_every_chart(tmp_path):
    one = made.write(tmp_path / "one", made.whole(), profile=made.PROFILE)
    two = made.write(tmp_path / "two", made.whole(ranks=2), events=made.EVENTS,
                     summary={"steps": 60, "peak_rss_bytes": 250_000_000})  # fmt: skip
    page = report(tmp_path, one, two)
    for title in TITLES:
        assert title in page.text
    assert "Not shown" not in page.text
    assert len(page.lines()) == 13 * 2 + 2  # 10 charts of both runs, 3 of them also logarithmic, and 2 of ranks
    assert all(len(points.split()) >= 3 for points in page.lines())
    assert "rank 1 (n1) was lost" in page.text
    assert "250 MB planned: 300 MB" in page.text
    assert "1,000 × 64 × 32 × 5,000 123,456 parameters" in page.text
    assert "P@1 1.0000 P@3 0.3333 P@5 0.2000" in page.text
    assert "2 ranks × 2 threads" in page.text
    assert "No data of A ." in page.text  # what only ranks have
    assert "fullest 17, 25.0% of buckets empty, 10.0% of neurons dropped from full ones" in page.text


def test_a_run_without_tests_ranks_tables_and_profile_says_what_is_not_shown(tmp_path):
    plain = [record for record in made.whole() if record["record"] not in ("test", "tables", "retrieval")]
    page = report(tmp_path, made.write(tmp_path / "run", plain))
    (words,) = re.findall("Not shown: (.*)", page.text)
    for title in (
        "P@1",
        "Test loss",
        "Sent in a step",
        "Waiting",
        "Labels found",
        "Ranks",
        "Bucket occupancy",
        "Phases of a step",
    ):
        assert f"{title}: " in words
    assert "--test" in words
    assert "Speed:" not in words


def test_only_tests_on_the_same_number_of_rows_are_joined(tmp_path):
    tests = [made.measured(1.0, 0.2), made.measured(2.0, 0.4), made.measured(3.0, 0.3, rows=500)]
    folder = made.write(tmp_path / "run", [made.start(), *tests])
    assert [curve.means for curve in read_run(folder).pieces("p_at_1")] == [[(1.0, 0.2), (2.0, 0.4)], [(3.0, 0.3)]]
    assert sorted(len(points.split()) for points in report(tmp_path, folder).lines()) == [1, 1, 1, 1, 2, 2, 2, 2]
    many = [made.measured(float(rows), 0.5, rows) for rows in range(1, 20)]
    assert len(read_run(made.write(tmp_path / "many", [made.start(), *many])).pieces("p_at_1")) == 4


def test_options_that_differ_are_shown_and_others_are_not(tmp_path):
    records = made.whole()
    one = made.write(tmp_path / "one", records)
    changed = [records[0] | {"config": records[0]["config"] | {"learning_rate": 0.5, "seed": 7}}, *records[1:]]
    page = report(tmp_path, one, made.write(tmp_path / "two", changed))
    assert "Options that differ option A B learning_rate 0.01 0.5 seed null 7 Charts" in page.text
    alone = report(tmp_path, one)
    assert "Options other than defaults option value default hidden [64, 32] " in alone.text
    same = report(tmp_path, one, made.write(tmp_path / "same", records))
    assert "Options" not in same.text


def test_a_real_run_is_shown(tmp_path, capsys):
    synthesize(tmp_path / "data", 300, 100, 40, 30, 0)
    command = ["train", str(tmp_path / "data/train.txt"), "--test", str(tmp_path / "data/test.txt"), "--out",
               str(tmp_path / "run"), "--hidden", "8", "--epochs", "2", "--threads", "1", "--test-every", "1",
               "--output", "lsh", "--profile", "--tensorboard", "--batch-size", "20", "--quiet"]  # fmt: skip
    assert main(command) == 0
    assert len(list((tmp_path / "run/tensorboard").iterdir())) == 1
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.html")]) == 0
    assert "report.html; open it in a browser" in capsys.readouterr().out
    page = Page((tmp_path / "report.html").read_text())
    run = read_run(tmp_path / "run")
    assert (run.state, run.starts, run.step, run.samples) == ("finished", 1, 30, 600)
    assert run.planned_bytes is not None
    assert run.peak_bytes is not None
    assert [moment.step for moment in run.checkpoints] == [30]
    assert len(run.tests["p_at_1"][30].means) == 2
    for title in ("P@1", "Loss over time", "Speed", "Active neurons", "Memory", "Bucket occupancy", "Phases of a step"):
        assert f"{title}:" not in page.text
        assert title in page.text
    assert "300 rows" in page.text


def test_nothing_is_loaded_and_no_script_but_ours_may_run(tmp_path):
    write_report([made.write(tmp_path / "run", made.whole())], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bsrc=|\bhref=|<link|<iframe", text.replace("// ", ""))
    assert "default-src 'none'" in text


# ---- several starts, and none that ended -----------------------------------------------------------------------------


def resumed() -> list[made.Record]:
    """Ten steps, then on from the sixth, of which four were lost: 1 s each at first, 2 s each later."""
    first = [made.start(), *(made.step(number, float(number)) for number in range(1, 11))]
    second = [made.start(6), *(made.step(number, 2.0 * (number - 6)) for number in range(7, 13))]
    return [*first, *second, made.end(12, 12.0, 600)]


def test_time_of_a_resumed_run_adds_up_and_samples_are_the_last_ones(tmp_path):
    run = read_run(made.write(tmp_path / "run", resumed()))
    assert (run.starts, run.seconds, run.step, run.samples) == (2, 22.0, 12, 1600)  # 10 steps and 6
    assert [x for x, _ in run.curves["loss"].means] == [*range(1, 11), *range(12, 23, 2)]
    assert [x for x, _ in run.curves["loss over samples"].means] == [100 * number for number in range(1, 13)]
    assert [moment.text for moment in run.events] == ["resumed from step 6, had reached 10"]
    speeds = [y for _, y in run.curves["speed"].means]
    assert speeds == pytest.approx([100] * 9 + [50] * 5)  # and nothing between the starts


@pytest.mark.parametrize(
    ("records", "state"),
    [
        (resumed(), "finished"),
        (resumed()[:-1], "no end yet"),
        ([*resumed()[:-1], made.end(12, 12.0, 600, interrupted=True)], "interrupted"),
        ([*resumed(), made.start(12)], "no end yet"),
        ([made.start()], "no end yet"),
    ],
)
def test_how_it_ended(tmp_path, records, state):
    folder = made.write(tmp_path / "run", records)
    assert read_run(folder).state == state
    assert state in report(tmp_path, folder).text


def test_a_summary_of_an_earlier_start_does_not_count(tmp_path):
    summary = {"steps": 12, "peak_rss_bytes": 5e9}
    assert read_run(made.write(tmp_path / "a", resumed(), summary=summary)).peak_bytes == 5e9
    later = [*resumed(), made.start(12), made.step(13, 1.0)]
    assert read_run(made.write(tmp_path / "b", later, summary=summary)).peak_bytes == 113_000_000


def test_events_are_placed_by_the_time_of_day(tmp_path):
    run = read_run(made.write(tmp_path / "run", made.whole(ranks=2), events=made.EVENTS))
    assert [(moment.seconds, moment.text) for moment in run.events] == [(30.0, "rank 1 (n1) was lost")]


# ---- damaged and strange folders -------------------------------------------------------------------------------------


def said(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_run(folder)
    return str(caught.value)


def test_a_last_line_that_is_not_complete_is_left_out(tmp_path):
    folder = made.write(tmp_path / "run", made.whole()[:-1])
    with open(folder / "log.jsonl", "a") as file:
        file.write('{"record": "step", "ti')
    assert read_run(folder).step == 60


def test_a_damaged_line_is_named_unless_a_start_follows(tmp_path):
    folder = made.write(tmp_path / "run", made.whole())
    lines = (folder / "log.jsonl").read_text().splitlines(keepends=True)
    (folder / "log.jsonl").write_text("".join([*lines[:5], '{"record": "st\n', *lines[5:]]))
    assert said(folder) == f'{folder}/log.jsonl: line 6: expected a JSON object, not \'{{"record": "st\''
    (folder / "log.jsonl").write_text("".join([*lines[:5], "[1, 2]\n", *lines[5:]]))
    assert said(folder).endswith("line 6: expected a JSON object, not '[1, 2]'")
    (folder / "log.jsonl").write_text("".join([*lines[:5], '{"record": "st\n', *lines]))
    assert read_run(folder).starts == 2


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (made.step(1, 1.0, loss="low"), "line 2: loss: expected a number, not 'low'"),
        (made.step(1, True), "line 2: seconds: expected a number, not True"),
        (made.step(1, 1.0, samples=10**400), "line 2: samples: expected a number, not a number beyond 1e+18"),
        (made.start(config=[]), "line 2: config: expected an object, not []"),
        (made.end(1, 1.0, 1) | {"load_balance": 5}, "line 2: load_balance: expected an object, not 5"),
        (
            made.end(1, 1.0, 1) | {"load_balance": {"per_rank": 5}},
            "line 2: load_balance: per_rank: expected a list of objects, not 5",
        ),
        (made.tables(1) | {"by_size": 3}, "line 2: by_size: expected a list of numbers, not 3"),
        ({"record": 5}, "line 2: record: expected a text, not 5"),
    ],
)
def test_values_that_make_no_sense_are_named(tmp_path, record, words):
    folder = made.write(tmp_path / "run", [made.start(), record])
    assert said(folder) == f"{folder}/log.jsonl: {words}"


def test_folders_that_are_no_runs(tmp_path):
    assert said(tmp_path / "none") == f"{tmp_path}/none: there is no such folder"
    (tmp_path / "empty").mkdir()
    assert "is not the folder of a run: expected log.jsonl in it" in said(tmp_path / "empty")
    (tmp_path / "empty/log.jsonl").write_text("")
    assert said(tmp_path / "empty") == f"{tmp_path}/empty/log.jsonl: is empty: training has not begun"
    headless = made.write(tmp_path / "headless", made.whole()[2:])
    assert said(headless).endswith("log.jsonl: line 1: expected the start of a run, not 'step'")
    folder = made.write(tmp_path / "run", made.whole())
    (folder / "log.jsonl").write_bytes(b"x" * 2**21)
    assert "line 1: is longer than 1,048,576 bytes" in said(folder)
    (folder / "log.jsonl").unlink()
    (folder / "log.jsonl").symlink_to("/dev/zero")
    assert "is a link" in said(folder)
    wrong = made.write(tmp_path / "wrong", made.whole(), summary="text")
    assert said(wrong) == f"{wrong}/summary.json: expected a JSON object"


def test_null_where_numbers_were_not_finite_is_no_point(tmp_path):
    records = [made.start(), made.step(1, 1.0), made.step(2, 2.0, loss=None), made.step(3, 3.0)]
    run = read_run(made.write(tmp_path / "run", records))
    assert [x for x, _ in run.curves["loss"].means] == [1.0, 3.0]


def test_a_log_with_fewer_fields_shows_its_tests_only(tmp_path):
    fields = ("record", "time", "step", "loss", "active", "learning_rate", "rows", "epoch")
    records = [{k: v for k, v in r.items() if r["record"] != "step" or k in fields} for r in made.whole()]
    page = report(tmp_path, made.write(tmp_path / "run", records))
    assert "Loss over time: the log has no such values" in page.text
    assert len(page.lines()) == 6  # P@1, R@5, loss on test data twice, nDCG@5 on held-out rows, labels found


def test_everything_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>&\"'<b>"
    records = made.whole(ranks=2)
    records[0] |= {"data": evil, "config": {evil: evil}}
    records[1] |= {"layer": evil}
    events = [made.EVENTS[1] | {"text": evil}]
    profile = {"phases": {evil: {"ms_per_step": 1.0}}}
    folder = made.write(tmp_path / evil.replace("/", ""), records, events=events, profile=profile)
    other = made.write(tmp_path / "other", made.whole())
    page = report(tmp_path, folder, other)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 1
    assert "b" not in tags
    assert page.text.count("alert(1)") >= 5


def test_names_that_are_no_text_are_shown_somehow(tmp_path):
    folder = Path(f"{tmp_path}/caf\udce9")
    made.write(folder, made.whole())
    assert "caf?" in report(tmp_path, folder).text


# ---- where it is written ---------------------------------------------------------------------------------------------


def test_a_report_is_replaced_and_nothing_else_is(tmp_path):
    run, out = made.write(tmp_path / "run", made.whole()), tmp_path / "report.html"
    write_report([run], out)
    out.write_text(out.read_text()[:500])
    write_report([run], out)
    assert out.read_text().endswith("</html>\n")
    for content in ("", "<!doctype html>\n<html>mine</html>"):
        out.write_text(content)
        with pytest.raises(ConfigError, match=r"report.html: exists already and is no report; give another --out"):
            write_report([run], out)
        assert out.read_text() == content
    with pytest.raises(DataError, match="is not a regular file"):
        write_report([run], run)
    with pytest.raises(ConfigError, match="can't be written: No such file or directory"):
        write_report([run], tmp_path / "no/report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]


def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-m", "dslide.cli", "report", "missing"], cwd=tmp_path, capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dslide: error: missing: there is no such folder\n"
    assert list(tmp_path.iterdir()) == []


# ---- long logs -------------------------------------------------------------------------------------------------------


def test_the_page_of_a_long_log_is_not_long_and_keeps_the_peaks(tmp_path):
    folder = made.write(tmp_path / "run", [made.start()])
    with open(folder / "log.jsonl", "a") as file:
        for number in range(1, 6001):
            loss = 99.0 if number == 4567 else 1.0
            file.write(json.dumps(made.step(number, float(number), loss=loss)) + "\n")
            if number % 20 == 0:
                file.write(json.dumps({"record": "checkpoint", "time": 0, "of_step": number}) + "\n")
                file.write(json.dumps(made.measured(float(number), 0.5)) + "\n")
    run = read_run(folder)
    assert BINS <= len(run.curves["loss"]) <= 2 * BINS
    assert max(y for _, y in run.curves["loss"].band) == 99.0
    assert len(run.checkpoints) <= 200
    write_report([folder], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 300_000


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5 * BINS))
def test_a_curve_keeps_lowest_highest_mean_and_ends(values):
    curve = Curve()
    for x, value in enumerate(values):
        curve.add(float(x), value)
    assert len(curve) <= 2 * BINS
    assert len(curve) > min(len(values), BINS) / 2
    band = [y for _, y in curve.band]
    assert (min(band), max(band)) == (min(values), max(values))
    means = curve.means
    assert [x for x, _ in means] == sorted(x for x, _ in means)
    if len(values) <= 2 * BINS:
        assert means == list(enumerate(values))
    elif len(values) % 4 == 0:  # all bins are full
        assert np.mean([y for _, y in means]) == pytest.approx(np.mean(values), abs=1e-6 * np.abs(values).max() + 1e-9)
    assert len(smoothed(means)) == len(means)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1e6))
def test_a_curve_is_cut(values, limit):
    curve = Curve()
    for x in sorted(values):
        curve.add(x, 1.0)
    curve.cut(limit)
    assert all(x <= limit for x, _ in curve.means)


def test_weights_count_in_means():
    curve = Curve()
    for x in range(2 * BINS + 1):
        curve.add(float(x), float(x % 2), weight=1 + 2 * (x % 2))
    assert curve.means[0] == (0.5, 0.75)


# ---- axes ------------------------------------------------------------------------------------------------------------


@given(st.floats(-1e18, 1e18), st.floats(-1e18, 1e18), st.integers(3, 8))
def test_ticks_are_around_the_values_few_and_even(one, other, most):
    low, high = min(one, other), max(one, other)
    ticks = round_ticks(low, high, most)
    step = ticks[1] - ticks[0]
    slack = 1e-5 * step
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= most
    assert np.diff(ticks) == pytest.approx(step)


@pytest.mark.parametrize(
    "values", [[0.9981, 0.9993], [0, 3e5], [5, 5], [-2, 7], [1e-8, 3e-8], [1e-5, 1e-5], [0, 11], [0.3, 1.4]], ids=str
)
def test_labels_of_ticks_are_their_values(values):
    for axis in (Axis(values, 0, 100), LogAxis([max(value, 1e-3) for value in values], 0, 100)):
        labels = [float(axis.label(tick).replace(",", "")) for tick in axis.ticks]
        assert labels == pytest.approx(axis.ticks)
        assert len(set(labels)) == len(labels)


def test_an_axis_may_include_zero():
    assert Axis([5.0], 0, 100, zero=True).low == 0


def test_units_suit_the_largest_number():
    assert unit(TIME, 100) == (1, "s")
    assert unit(TIME, 200) == (60, "min")
    assert unit(TIME, 1e9) == (86400, "days")
    assert unit(BYTES, 2e9) == (1e6, "MB")
    assert unit(BYTES, 0) == (1, "bytes")


def test_an_empty_run_has_no_pieces():
    assert RunHistory("x").pieces("loss") == []
