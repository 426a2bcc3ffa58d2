"""The report in a real browser, if there is one: it is drawn, fits narrow and wide windows, and logs no errors."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import support.run_folders as made

from dslide.report import write_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium or Chrome on PATH")

# Examines the layout of the page and writes its findings, as JSON, into the page around it.
LOOK = """
const inside = (one, other) => one.left > other.left - 1 && one.right < other.right + 1 && one.top > other.top - 1 &&
  one.bottom < other.bottom + 1;
const apart = (one, other) => one.right < other.left + 1 || other.right < one.left + 1 || one.bottom < other.top + 3 ||
  other.bottom < one.top + 3;
const found = { width: innerWidth, page: document.documentElement.scrollWidth, outside: [], clipped: [], overlaps: [] };
for (const element of document.querySelectorAll("body *")) {
  const box = element.getBoundingClientRect();
  if (box.width && (box.right > innerWidth + 0.5 || box.left < -0.5) && !element.closest(".small, svg, script"))
    found.outside.push(`${element.tagName} ${element.textContent.slice(0, 40)}`);
}
function check(chart) {
  const found_texts = chart.querySelectorAll(chart.matches(".zoomed") ? ".axes text" : "text");
  const texts = [...found_texts].map((text) => [text.textContent, text.getBoundingClientRect()]);
  for (const [i, [text, box]] of texts.entries()) {
    if (!inside(box, chart.getBoundingClientRect())) found.clipped.push(text);
    for (const [other, second] of texts.slice(i + 1)) if (!apart(box, second)) found.overlaps.push([text, other]);
  }
}
document.querySelectorAll("svg.chart").forEach(check);
found.figures = [...document.querySelectorAll("figure")].map((figure) => ({
  title: figure.querySelector("h3").firstChild.textContent.trim(),
  points: [...figure.querySelectorAll("polyline.line")].map((line) => line.points.length),
  bars: [...figure.querySelectorAll(".bar i")].filter((bar) => bar.getBoundingClientRect().width > 0).length,
}));
const chart = document.querySelector("svg.chart"), middle = chart.getBoundingClientRect();
const at = { clientX: middle.left + middle.width / 2, clientY: middle.top + 5 };
chart.dispatchEvent(new PointerEvent("pointermove", at));
found.readout = chart.parentNode.querySelector("output").textContent;
const loss = document.querySelector(".linear svg.chart"), losses = document.querySelector(".log svg.chart");
const width = () => loss.querySelector("polyline.line").getBBox().width;
const pointer = (on, name, share) => {
  const box = on.getBoundingClientRect(), { x, width } = on.querySelector(".plot");
  const at = (x.baseVal.value + share * width.baseVal.value) / on.viewBox.baseVal.width;
  on.dispatchEvent(new PointerEvent(name, { clientX: box.left + at * box.width, clientY: box.top + 5 }));
  return on.closest("figure").querySelector("output").textContent;
};
const drag = (on) => {
  for (const [name, at] of [["down", 0.4], ["move", 0.5], ["up", 0.6]]) pointer(on, `pointer${name}`, at);
};
const before = { width: width(), ticks: loss.querySelector(".axes").textContent };
found.values = [pointer(loss, "pointermove", 0.5)];
drag(loss);
found.values.push(pointer(loss, "pointermove", 0.5));
found.enlarged = width() / before.width;
check(loss);
loss.closest("figure").querySelector("button").click();
found.again = width() === before.width && loss.querySelector(".axes").textContent === before.ticks;
document.querySelector("#logarithmic").click();
found.hidden = [loss, losses].map((chart) => chart.getBoundingClientRect().width === 0);
found.values.push(pointer(losses, "pointermove", 0.5));
drag(losses);
check(losses);
found.ticks = losses.querySelectorAll(".axes text").length;
const lines = [...chart.querySelectorAll("polyline.line")];
const seen = () => lines.filter((line) => getComputedStyle(line).display !== "none").length;
found.seen = [seen()];
document.querySelector("#show0").click();
found.seen.push(seen());
parent.document.querySelector("pre").textContent = JSON.stringify(found);
"""


def browse(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page as it is after scripts have run, and what was written to the console."""
    assert BROWSER is not None
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
               "--enable-logging=stderr", "--v=0", "--dump-dom", page.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs: with everything, on ranks with events, long, and with one step and the longest names."""
    folder = tmp_path_factory.mktemp("report")
    runs = [
        made.write(folder / "one", made.whole(), profile=made.PROFILE),
        made.write(folder / "two", made.whole(ranks=2), events=made.EVENTS),
        made.write(folder / "long", made.whole(ranks=3, steps=900)),
        made.write(folder / ("name" * 40), [made.start(data="d" * 200), made.step(1, 0.1), made.measured(0.2, 0.3)]),
    ]
    write_report(runs, folder / "report.html")
    return folder / "report.html"


def looked_at(page: Path, folder: Path, width: int) -> dict[str, Any]:
    """What LOOK finds. The page's policy is removed, because it lets no other script run; the page is put into a frame,
    because windows have a least width."""
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    text = html.escape(text.replace("</body>", f"<script>{LOOK}</script></body>"))
    frame = folder / "frame.html"
    style = f"width:{width}px;height:900px"
    frame.write_text(f'<!doctype html><pre></pre><iframe style="{style}" srcdoc="{text}"></iframe>')
    content, console = browse(frame, folder / "profile")
    assert console == []
    found: dict[str, Any] = json.loads(html.unescape(re.findall("<pre>(.*?)</pre>", content, re.DOTALL)[0]))
    return found


def test_the_page_logs_no_errors(page, tmp_path):
    content, console = browse(page, tmp_path / "profile")
    assert console == []
    assert content.count("<figure>") == 15


@pytest.mark.parametrize("width", [400, 1400])
def test_everything_is_drawn_and_fits(page, tmp_path, width):
    found = looked_at(page, tmp_path, width)
    assert found["width"] == width
    assert found["page"] <= width
    assert found["outside"] == []
    assert found["clipped"] == []
    assert found["overlaps"] == []
    for figure in found["figures"]:
        assert sum(figure["points"]) + figure["bars"] > 0, figure["title"]
        assert all(figure["points"]), figure["title"]
    assert len(found["figures"]) == 15
    assert re.match(r"[\d.]+ min of training:", found["readout"])  # under the pointer
    at_middle = [re.findall(r" min of training:C ([\d.]+) $", values) for values in found["values"]]
    whole, enlarged, logarithmic = (float(value) for (value,) in at_middle)  # the other runs have ended by then
    assert enlarged == pytest.approx(whole, rel=0.02)
    assert logarithmic == pytest.approx(whole, rel=0.02)
    assert found["enlarged"] > 4
    assert found["again"]
    assert found["hidden"] == [True, False]
    assert found["ticks"] >= 6
    assert found["seen"] == [4, 3]  # lines, before and after a run was hidden


def test_a_script_in_a_page_that_is_not_ours_does_not_run(page, tmp_path):
    copy = tmp_path / "copy.html"
    copy.write_text(page.read_text().replace("</body>", "<script>document.title = 'ha'</script></body>"))
    content, console = browse(copy, tmp_path / "profile")
    assert "<title>ha</title>" not in content
    assert any("Content Security Policy" in line for line in console)
