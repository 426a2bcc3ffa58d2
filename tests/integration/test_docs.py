"""Links between the documents: every file and heading they point to exists, and the index lists every page."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dslide.data.load import FORMATS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted(DOCS.rglob("*.ipynb"))]

ALL = frozenset(PAGES)
DEVELOPMENT = {"test", "lint", "docs", "bench"}  # extras


def text_of(page: Path) -> str:
    """The text of a page; of a notebook that of its cells of text."""
    if page.suffix == ".md":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def without_code(text: str) -> str:
    """Markdown without fenced and indented code blocks and code spans, where brackets are not links."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?<=\n\n)(?: {4}.*\n)+", "", text)
    return re.sub(r"`[^`\n]+`", "code", text)


def links(text: str) -> Iterator[str]:
    """Targets of links and images, but for those on the network. A link may go over the end of a line."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchor(heading: str) -> str:
    """The anchor that GitHub makes of a heading: lower case, letters, digits and hyphens; spaces become hyphens."""
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """All anchors of a page. A heading that occurs again gets a number."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#{1,6} (.+)$", text, flags=re.MULTILINE):
        name = anchor(heading)
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return frozenset(found)


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for target in links(text):
        path, _, name = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (name and (file not in ALL or name not in anchors(file))):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page: Path) -> None:
    assert broken(page, text_of(page)) == []


def test_there_are_links_to_check() -> None:
    assert sum(len(list(links(text_of(page)))) for page in PAGES) > 100


def test_broken_links_are_found() -> None:
    text = "[a](missing.md) [b](guide/data.md#no-such-heading) [two\nlines](gone.md) ![c](gone.svg) [d](#nothing)\n"
    text += "[fine](guide/recommend.md#tables) `[code](ignored.md)`\n\n    [code](ignored.md)\n"
    page = DOCS / "README.md"
    assert broken(page, text) == ["missing.md", "guide/data.md#no-such-heading", "gone.md", "gone.svg", "#nothing"]


def test_anchors_are_those_of_github() -> None:
    assert anchor("Hash hits, random negatives, the batch's own labels") == (
        "hash-hits-random-negatives-the-batchs-own-labels"
    )
    assert anchor("`--resume` and [links](a.md)") == "--resume-and-links"


def test_the_index_lists_every_page() -> None:
    index = DOCS / "README.md"
    listed = {(DOCS / target.partition("#")[0]).resolve() for target in links(index.read_text())}
    assert {page for page in PAGES if DOCS in page.parents and page != index} <= listed


def test_every_picture_is_shown() -> None:
    shown = {(page.parent / target).resolve() for page in PAGES for target in links(text_of(page))}
    assert set(DOCS.rglob("*.svg")) <= shown


def test_pictures_of_concepts_are_those_of_the_script() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures.py"))["PICTURES"]
    assert {path.stem: path.read_text() for path in (DOCS / "concepts").glob("*.svg")} == {
        name: draw() for name, draw in drawn.items()
    }


def sections_with_tables(page: Path) -> Iterator[str]:
    """Anchors of the sections of a page that have a table."""
    name = ""
    for line in page.read_text().splitlines():
        if heading := re.fullmatch(r"#{1,6} (.+)", line):
            name = anchor(heading[1])
        elif line.startswith("|---") and name:
            yield name


def test_every_table_of_results_has_its_command() -> None:
    index = DOCS / "results/index.md"
    listed = set(links(index.read_text()))
    tables = {
        f"{page.name}#{name}"
        for page in DOCS.glob("results/*.md")
        if page != index
        for name in sections_with_tables(page)
        if name != "reproduce"
    }
    assert len(tables) > 20
    assert tables - listed == set()


def test_every_format_of_data_is_in_the_guide() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (DOCS / "guide/data.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(FORMATS)


def test_commands_of_results_exist() -> None:
    text = (DOCS / "results/index.md").read_text()
    modules = set(re.findall(r"python -m (bench[\w.]*)", text))
    assert len(modules) >= 6
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_all_dependencies_are_listed_with_their_licences() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: wanted for name, wanted in project["optional-dependencies"].items() if name not in DEVELOPMENT}
    wanted = [*project["dependencies"], *(each for extra in extras.values() for each in extra), "nanobind"]
    listed = set(re.findall(r"^\| ([\w-]+) \| .* \| .*\w.* \| .*\|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE))
    assert {re.match(r"[\w-]+", name)[0] for name in wanted} == listed - {"package"}  # type: ignore[index]
