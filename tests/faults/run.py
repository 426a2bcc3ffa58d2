"""Every file operation of saving, training, resuming, replicating, converting and exporting fails once: the first, the
second, and so on, each with every kind of fault. After each, the last good checkpoint opens, the same command given
again ends as it would have without the fault, bit for bit, and what was said is one sentence.

    python tests/faults/run.py                     all operations, all faults (some minutes)
    python tests/faults/run.py --every 50 train    every 50th of one scenario
    python tests/faults/run.py --only 17 EIO train one again

The operations are those that the C library does for this process (files.c, which is preloaded).
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]
SOURCE = Path(__file__).with_name("files.c")
LIMIT = 30.0  # seconds that a command may take
OPERATIONS = {
    "o": "open", "c": "close", "r": "read", "w": "write", "f": "fsync", "u": "unlink", "d": "rmdir", "m": "mkdir",
    "n": "rename", "l": "link", "t": "truncate", "k": "seek", "s": "stat", "i": "touch", "a": "flock", "p": "mmap",
    "e": "readdir",
}  # fmt: skip


class Fault(NamedTuple):
    """What happens to an operation: its kind and error, as files.c takes them."""

    kind: int
    error: int = 0
    only: str = "".join(OPERATIONS)  # operations that it can happen to


FAULTS = {
    "ENOSPC": Fault(0, errno.ENOSPC), "EIO": Fault(0, errno.EIO), "EMFILE": Fault(0, errno.EMFILE),
    "half": Fault(1, only="rw"), "killed before": Fault(2), "killed after": Fault(3, only="wnulmfto"),
}  # fmt: skip


class Shim(ctypes.CDLL):
    """The preloaded library."""

    def __init__(self) -> None:
        super().__init__(os.environ["LD_PRELOAD"].split()[0])
        self.faults_names.restype = ctypes.c_char_p
        self.faults_disarm.restype = ctypes.c_long
        self.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]

    def arm(self, folder: Path, number: int, fault: Fault) -> None:
        self.faults_arm(os.fsencode(folder), number, fault.kind, fault.error)


class Scenario(NamedTuple):
    """A command, and how to tell what it left."""

    prepare: Callable[[Path], None]  # makes what it starts from
    act: Callable[[Path], int]  # the command, in a folder; its exit code
    check: Callable[[Path], None]  # what must hold after any fault
    again: Callable[[Path], object]  # the command given again, if need be, after any fault
    result: Callable[[Path], object]  # what must be there in the end


def in_child(work: Callable[[], int], printed: Path) -> int:
    """The exit code of the work, done in a process of its own; minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            handle = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            code = work()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    end = time.monotonic() + LIMIT
    pause = 0.001
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -signal.SIGALRM
        time.sleep(pause)
        pause = min(0.02, 2 * pause)


def said_wrong(code: int, text: str) -> str:
    """What is wrong with an exit code and what was printed; nothing as a rule."""
    if code == -signal.SIGALRM:
        return f"took longer than {LIMIT:g} s"
    if "Traceback" in text or code not in (0, 2, 4):
        return f"exit code {code}: {text[-1500:]}"
    problems = [line for line in text.splitlines() if line.startswith("dslide: error: ")]
    if code != 0 and len(problems) != 1:
        return f"exit code {code} with {len(problems)} sentences: {text[-1500:]}"
    return ""


def run_case(
    name: str, scenario: Scenario, template: Path, number: int, fault: Fault, place: Path, want: object
) -> str:
    """One fault; what is wrong, nothing as a rule."""
    shim, folder, printed = Shim(), place / "folder", place / "printed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)

    def act() -> int:
        shim.arm(folder, number, fault)
        code = scenario.act(folder)
        shim.faults_disarm()
        if code == 0 and scenario.result(folder) != want:
            print("Traceback: it said that all was well, but the result is another one")
        return code

    def after() -> int:
        scenario.check(folder)
        scenario.again(folder)
        if scenario.result(folder) != want:
            print("another result")
            return 1
        return 0

    code = in_child(act, printed)
    text = printed.read_text(errors="replace")
    is_killed = fault.kind >= 2 and code == -signal.SIGKILL
    if not is_killed and (wrong := said_wrong(code, text)):
        return wrong
    if in_child(after, printed) != 0:
        return f"afterwards: {printed.read_text(errors='replace')[-2500:]}\nafter: {text[-500:]}"
    return ""


def operations(scenario: Scenario, template: Path, place: Path) -> tuple[str, object]:
    """The operations of a scenario, a letter each, and its result."""
    import pickle

    shim, folder = Shim(), place / "folder"
    shutil.copytree(template, folder)

    def act() -> int:
        shim.arm(folder, 0, Fault(0))
        code = scenario.act(folder)
        shim.faults_disarm()
        (place / "names").write_bytes(shim.faults_names())
        (place / "result").write_bytes(pickle.dumps(scenario.result(folder)))
        return code

    code = in_child(act, place / "printed")
    assert code == 0, (place / "printed").read_text()
    return (place / "names").read_text(), pickle.loads((place / "result").read_bytes())


def run_scenario(name: str, every: int, first: int, only: tuple[int, str] | None = None) -> tuple[int, int, list[str]]:
    """The number of operations, of faults, and what went wrong."""
    from faults.scenarios import SCENARIOS

    scenario, cases, wrong = SCENARIOS[name], 0, []
    with tempfile.TemporaryDirectory(prefix="faults") as scratch:
        place, template = Path(scratch), Path(scratch) / "template"
        template.mkdir()
        made = in_child(lambda: scenario.prepare(template) or 0, place / "printed")
        assert made == 0, (place / "printed").read_text()
        names, want = operations(scenario, template, place)
        todo = [
            (number, kind)
            for kind, fault in FAULTS.items()
            for number, letter in enumerate(names, 1)
            if letter in fault.only
        ]
        for number, kind in [only] if only else todo[first % every :: every]:
            cases += 1
            if problem := run_case(name, scenario, template, number, FAULTS[kind], place, want):
                what = OPERATIONS.get(names[number - 1 : number], "?")
                wrong.append(f"{name}, operation {number} ({what}), {kind}: {problem}")
                print(wrong[-1], flush=True)
    found = ", ".join(f"{count} {OPERATIONS[letter]}" for letter, count in Counter(names).most_common())
    print(f"{name}: {len(names)} operations ({found}), {cases} faults, {len(wrong)} went wrong", flush=True)
    return len(names), cases, wrong


def built(folder: Path) -> Path:
    """The library to preload."""
    library = folder / "files.so"
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", library, SOURCE, "-ldl"], check=True)
    return library


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="default: all")
    parser.add_argument("--every", type=int, default=1, help="only every so manieth fault (default: all)")
    parser.add_argument("--first", type=int, default=0, help="where to begin with --every")
    parser.add_argument("--only", nargs=2, metavar=("NUMBER", "FAULT"), help="a single fault")
    arguments = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="faults") as scratch:
            environment = {**os.environ, "LD_PRELOAD": str(built(Path(scratch))), "OPENBLAS_NUM_THREADS": "1"}
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
            return subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=environment).returncode
    from faults.scenarios import SCENARIOS

    only = (int(arguments.only[0]), arguments.only[1]) if arguments.only else None
    begin, total, count = time.monotonic(), 0, 0
    wrong: list[str] = []
    for name in arguments.scenarios or SCENARIOS:
        found, cases, problems = run_scenario(name, arguments.every, arguments.first, only)
        total, count, wrong = total + found, count + cases, wrong + problems
    print(f"{total} operations, {count} faults, {len(wrong)} went wrong, in {time.monotonic() - begin:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
