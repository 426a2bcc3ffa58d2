"""Makes a release: version and changelog, a commit, a tag, and a push that starts the workflow which publishes it.

python release/release.py 0.2.0 --dry-run    # checks, and prints what would change; changes nothing
python release/release.py 0.2.0
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import subprocess
import sys
from pathlib import Path

PROJECT, CHANGES = Path("pyproject.toml"), Path("CHANGELOG.md")
BRANCH = "main"
VERSION = re.compile(r'^version = "(\d+)\.(\d+)\.(\d+)"$', re.MULTILINE)
UNRELEASED = re.compile(r"^## Unreleased\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description="makes a release of this clone's main branch")
    parser.add_argument("version", help="as 1.2.3")
    parser.add_argument("--dry-run", action="store_true", help="only print what would change")
    given = parser.parse_args()
    before = {path: path.read_text() for path in (PROJECT, CHANGES)}
    after = edited(before, given.version, datetime.date.today())
    check_clone(given.version)
    for path, text in after.items():
        print(
            *difflib.unified_diff(before[path].splitlines(), text.splitlines(), str(path), lineterm="", n=1), sep="\n"
        )
    tag = f"v{given.version}"
    push = ["push", "--atomic", "origin", BRANCH, tag]
    if given.dry_run:
        print(f"dry run, nothing changed; would commit this, tag it {tag}, and then: git {' '.join(push)}")
        return
    for path, text in after.items():
        path.write_text(text)
    git("commit", "--quiet", "--message", f"Release {given.version}", "--", *map(str, after))
    git("tag", "--annotate", tag, "--message", f"dslide {given.version}")
    git(*push)
    print(f"pushed {tag}; the workflow `wheels` builds and publishes it")


def edited(before: dict[Path, str], version: str, today: datetime.date) -> dict[Path, str]:
    """The files with the new version."""
    project, changes = before[PROJECT], before[CHANGES]
    match, section = VERSION.search(project), UNRELEASED.search(changes)
    if match is None:
        sys.exit(f'{PROJECT}: no version = "1.2.3"')
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"{version}: expected a version such as 1.2.3")
    if tuple(map(int, version.split("."))) < tuple(map(int, match.groups())):
        sys.exit(f"{version}: is older than {'.'.join(match.groups())}, that of {PROJECT}")
    if section is None or not section[1].strip():
        sys.exit(f"{CHANGES}: has nothing under ## Unreleased")
    heading = f"## Unreleased\n\n## {version} ({today.isoformat()})\n"
    return {
        PROJECT: VERSION.sub(f'version = "{version}"', project, count=1),
        CHANGES: changes.replace("## Unreleased\n", heading, 1),
    }


def check_clone(version: str) -> None:
    """Ends the program unless the branch is the released one, without changes, and the version is a new one."""
    if (branch := git("rev-parse", "--abbrev-ref", "HEAD")) != BRANCH:
        sys.exit(f"this is branch {branch}; releases are made of {BRANCH}")
    if changed := git("status", "--porcelain"):
        sys.exit(f"commit these first, or remove them:\n{changed}")
    if git("tag", "--list", f"v{version}"):
        sys.exit(f"{version}: there is a tag v{version} already")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
