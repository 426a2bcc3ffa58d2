"""The page to try a model, in a real browser without a window: wide, and as narrow as a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from support.serving import serving, train_text_model

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PHONE = 360  # CSS pixels

# Fills the form of the page, waits for the answer, and writes what it sees into the title, which --dump-dom prints.
DRIVER = """<!doctype html><title>wait</title>
<iframe id="page" src="/" style="width:WIDTHpx;height:700px;border:0"></iframe>
<script>
  document.getElementById("page").onload = async event => {
    const inside = event.target.contentDocument, pause = () => new Promise(done => setTimeout(done, 50));
    while (inside.getElementById("about").textContent.length < 5) await pause();
    inside.getElementById("text").value = "word3 the";
    inside.querySelector("button").click();
    while (!inside.querySelector("li")) await pause();
    document.title = JSON.stringify({
      about: inside.getElementById("about").textContent, took: inside.getElementById("took").textContent,
      labels: [...inside.querySelectorAll(".name span:first-child")].map(each => each.textContent),
      bar: inside.querySelector(".bar i").getBoundingClientRect().width,
      secret: inside.getElementById("secret").offsetHeight,
      why: inside.querySelector(".why span").textContent, overflow: inside.documentElement.scrollWidth - WIDTH,
    });
  };
</script>"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_text_model(tmp_path_factory.mktemp("page"))


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (apt-get install chromium)")
@pytest.mark.parametrize("width", [1000, PHONE])
def test_the_page_shows_labels_bars_and_words(run: Path, tmp_path: Path, width: int) -> None:
    async def driver(_: Request) -> HTMLResponse:
        return HTMLResponse(DRIVER.replace("WIDTH", str(width)))

    with serving(run, [Route("/driver", driver)]) as (client, _):
        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}",
            "--virtual-time-budget=20000", "--dump-dom", f"http://127.0.0.1:{client.port}/driver",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None, done.stderr[-2000:]
    seen = json.loads(html.unescape(title[1]))
    assert seen["labels"][0] == "label 3"
    assert len(seen["labels"]) == 5
    assert seen["bar"] > width / 4
    assert seen["why"].startswith("word3 +")
    assert "12 labels" in seen["about"]
    assert seen["secret"] == 0  # no token is asked for
    assert "ms" in seen["took"]
    assert seen["overflow"] <= 0
