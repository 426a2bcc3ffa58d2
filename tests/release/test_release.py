"""The release command, on a small repository of its own; and what the files that describe the project say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = '[project]\nname = "dslide"\nversion = "0.1.0"\n'
CHANGES = "# Changes\n\n## Unreleased\n\n- A change.\n\n## 0.1.0\n\n- The first one.\n"


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    done = subprocess.run(["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a bare repository, beside it."""
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", tmp_path / "origin.git"], check=True)
    subprocess.run(["git", "init", "-q", "-b", "main", tmp_path / "clone"], check=True)
    folder = tmp_path / "clone"
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "CHANGELOG.md").write_text(CHANGES)
    git(folder, "config", "user.name", "tests")
    git(folder, "config", "user.email", "tests@localhost")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "begin")
    git(folder, "remote", "add", "origin", str(tmp_path / "origin.git"))
    return folder


def release(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "release" / "release.py"), *arguments]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True)


def test_a_release_is_committed_tagged_and_pushed(clone: Path) -> None:
    done = release(clone, "0.2.0")
    assert done.returncode == 0, done.stderr
    origin = clone.parent / "origin.git"
    assert git(origin, "rev-parse", "v0.2.0^{commit}") == git(origin, "rev-parse", "main")
    assert git(origin, "show", "main:pyproject.toml") == PROJECT.replace("0.1.0", "0.2.0").strip()
    changes = git(origin, "show", "v0.2.0:CHANGELOG.md")
    assert re.search(r"## Unreleased\n\n## 0\.2\.0 \(\d{4}-\d\d-\d\d\)\n\n- A change\.\n\n## 0\.1\.0\n", changes)
    assert release(clone, "0.3.0").stderr == "CHANGELOG.md: has nothing under ## Unreleased\n"


def test_a_dry_run_shows_the_changes_and_makes_none(clone: Path) -> None:
    done = release(clone, "0.2.0", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert '+version = "0.2.0"' in done.stdout
    assert "git push --atomic origin main v0.2.0" in done.stdout
    assert (clone / "pyproject.toml").read_text() == PROJECT
    assert (clone / "CHANGELOG.md").read_text() == CHANGES
    assert git(clone, "tag") == git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.0.9", "0.0.9: is older than 0.1.0, that of pyproject.toml"),
        ("0.2", "0.2: expected a version such as 1.2.3"),
    ],
)
def test_a_wrong_version_is_refused(clone: Path, version: str, message: str) -> None:
    done = release(clone, version)
    assert (done.returncode, done.stderr.strip()) == (1, message)


def test_only_a_clean_main_branch_without_the_tag_is_released(clone: Path) -> None:
    git(clone, "tag", "v0.2.0")
    assert release(clone, "0.2.0").stderr == "0.2.0: there is a tag v0.2.0 already\n"
    (clone / "more.txt").touch()
    assert release(clone, "0.3.0").stderr == "commit these first, or remove them:\n?? more.txt\n"
    git(clone, "checkout", "-q", "-b", "other")
    assert release(clone, "0.3.0").stderr == "this is branch other; releases are made of main\n"


def test_the_guide_names_every_extra() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (section,) = re.findall(r"^\[project\.optional-dependencies\]\n(.*?)\n\n", project, re.DOTALL | re.MULTILINE)
    extras = re.findall(r"^([a-z0-9]+) = ", section, re.MULTILINE)
    table = re.findall(r"^\| `([a-z0-9]+)` \|", (ROOT / "docs" / "guide" / "install.md").read_text(), re.MULTILINE)
    assert len(extras) > 5
    assert sorted(table) == sorted(extras)
