"""Every allocation of the core fails once, while commands read, train, exchange and predict: the first, the second, and
so on. Each time the command says in one sentence that memory is short, or does without, and given again in the same
process it ends as it would have without the fault, bit for bit.

    python tests/faults/memory.py                     all allocations (some minutes)
    python tests/faults/memory.py --every 50 train    every 50th of one command
    python tests/faults/memory.py --only 17 train     one again
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]
SOURCE = Path(__file__).with_suffix(".cpp")
OUT_OF_MEMORY = 4  # exit code


class Command(NamedTuple):
    """A command, in a folder that has what it reads."""

    prepare: Callable[[Path], None]
    act: Callable[[Path], int]  # its exit code
    result: Callable[[Path], object]


def commands() -> dict[str, Command]:
    from faults.scenarios import digest, main, on_ranks, prepare_data, ranks_state, run_to_end

    from dslide.checkpoint.saved_model import load_model

    network = ["--hidden", "8", "--threads", "2", "--epochs", "1", "--checkpoint-seconds", "0", "--quiet", "--k", "1"]

    def numbers(folder: Path) -> None:
        rows = [f"{i % 7},{i % 3} {i % 5}:1 {5 + i % 6}:0.5\n" for i in range(60)]
        (folder / "data").write_text("".join(rows))

    def users(folder: Path) -> None:
        (folder / "data").write_text("".join(f"{u} {u % 7} {7 + u % 5} {12 + u % 4}\n" for u in range(40)))

    def train(*words: str) -> Callable[[Path], int]:
        return lambda folder: main(["train", str(folder / "data"), "--out", str(folder / "out"), *network, *words])

    def trained(folder: Path) -> object:
        return digest(load_model(folder / "out", optimizer=True, verify=True))

    def prepare_run(folder: Path) -> None:
        numbers(folder)
        assert train("--output", "lsh")(folder) == 0
        (folder / "out").rename(folder / "run")

    def predict(folder: Path) -> int:
        return main(
            ["predict", str(folder / "run"), str(folder / "data"), "--output", str(folder / "out"), "--approximate"]
        )

    return {
        "train": Command(numbers, train("--output", "lsh", "--batch-size", "16"), trained),
        "items": Command(users, train("--format", "interactions"), trained),
        "predict": Command(prepare_run, predict, lambda folder: (folder / "out").read_bytes()),
        "ranks": Command(prepare_data, lambda folder: run_to_end(lambda: on_ranks(folder, 1) or 0), ranks_state),
    }


def clean(folder: Path, kept: set[str]) -> None:
    """Removes what a command has made."""
    for path in folder.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def run_case(command: Command, template: Path, number: int, place: Path, want: object, shim: ctypes.CDLL) -> str:
    """One fault; what is wrong, nothing as a rule."""
    from faults.run import in_child, said_wrong

    folder, printed = place / "folder", place / "printed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    kept = {path.name for path in template.iterdir()}

    def work() -> int:
        shim.memory_arm(ctypes.c_long(number))
        code = command.act(folder)
        shim.memory_disarm()
        if code == 0 and command.result(folder) != want:
            print("Traceback: it said that all was well, but the result is another one")
        clean(folder, kept)
        if command.act(folder) != 0 or command.result(folder) != want:
            print("Traceback: given again, it ends in another way")
        return code

    code = in_child(work, printed)
    text = printed.read_text(errors="replace")
    if code not in (0, OUT_OF_MEMORY):
        return f"exit code {code}: {text[-2500:]}"
    return said_wrong(code, text)


def allocations(command: Command, template: Path, place: Path, shim: ctypes.CDLL) -> tuple[int, object]:
    """How many a command makes, and its result."""
    import pickle

    from faults.run import in_child

    folder = place / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)

    def work() -> int:
        assert shim.memory_arm(ctypes.c_long(0)), "there is no _core in this process"
        code = command.act(folder)
        (place / "counted").write_text(str(shim.memory_disarm()))
        (place / "result").write_bytes(pickle.dumps(command.result(folder)))
        return code

    assert in_child(work, place / "printed") == 0, (place / "printed").read_text()
    return int((place / "counted").read_text()), pickle.loads((place / "result").read_bytes())


def run_command(name: str, every: int, first: int, only: int | None) -> tuple[int, int, int]:
    """Allocations of a command, faults, and how many went wrong."""
    from faults.run import in_child

    command, wrong = commands()[name], 0
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"].split()[0])
    with tempfile.TemporaryDirectory(prefix="faults") as scratch:
        place, template = Path(scratch), Path(scratch) / "template"
        template.mkdir()
        made = in_child(lambda: command.prepare(template) or 0, place / "printed")
        assert made == 0, (place / "printed").read_text()
        count, want = allocations(command, template, place, shim)
        numbers = range(1 + first, count + 1, every) if only is None else [only]
        for number in numbers:
            if problem := run_case(command, template, number, place, want, shim):
                wrong += 1
                print(f"{name}, allocation {number}: {problem}", flush=True)
    print(f"{name}: {count} allocations, {len(numbers)} faults, {wrong} went wrong", flush=True)
    return count, len(numbers), wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", help="default: all")
    parser.add_argument("--every", type=int, default=1, help="only every so manieth allocation (default: all)")
    parser.add_argument("--first", type=int, default=0, help="where to begin with --every")
    parser.add_argument("--only", type=int, help="a single fault")
    arguments = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="faults") as scratch:
            library = Path(scratch) / "memory.so"
            flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
            subprocess.run([os.environ.get("CXX", "c++"), *flags, "-o", library, SOURCE, "-ldl"], check=True)
            environment = {**os.environ, "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"}
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
            return subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=environment).returncode
    begin, total, count, wrong = time.monotonic(), 0, 0, 0
    for name in arguments.commands or commands():
        found, cases, problems = run_command(name, arguments.every, arguments.first, arguments.only)
        total, count, wrong = total + found, count + cases, wrong + problems
    print(f"{total} allocations, {count} faults, {wrong} went wrong, in {time.monotonic() - begin:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
