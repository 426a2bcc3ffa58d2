"""Damages valid input in a thousand ways and opens it: data files, converted folders, models, options, command lines.

Whatever the damage, it either opens or ends in one sentence that a user can read (UserError). No other exception, no
warning, nothing printed, no waiting, no more memory than a bound, and nothing outside its folder is touched.

    PYTHONPATH=tests python -m fuzz.run --minutes 10            all targets, other damage each time
    PYTHONPATH=tests python -m fuzz.run --examples 500 model    one target
    PYTHONPATH=tests python -m fuzz.run --seed 7 --only 123 model    one example again

An example follows from seed, target and its number. One that fails is kept in build/fuzz.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

from fuzz.targets import TARGETS, Target

MEMORY = 1 << 30  # bytes that an example may take beyond what the process has
SECONDS = 20.0  # that it may take
MESSAGE = 1500  # characters that a sentence may have beside paths
KEPT = Path("build/fuzz").resolve()


class Finding(NamedTuple):
    """An example that went wrong."""

    target: str
    number: int
    reason: str
    folder: Path  # a copy of its input


class Wrong(Exception):
    """What an example did that it must not do."""


def check_targets(
    names: list[str], seed: int, numbers: Callable[[], Iterator[int]], kept: Path = KEPT
) -> list[Finding]:
    """Runs examples of targets, and prints how many; gives what went wrong."""
    findings = []
    for name in names:
        done, begin = 0, time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fuzz") as scratch:
            target = TARGETS[name](Path(scratch) / "sample")
            opened = 0
            for number in numbers():
                found, ok = run_example(name, target, seed, number, Path(scratch), kept)
                done, opened = done + 1, opened + ok
                findings += found
                if len(findings) >= 20:
                    break
        print(
            f"{name}: {done} examples in {time.monotonic() - begin:.0f} s, {opened} opened, "
            f"{sum(f.target == name for f in findings)} went wrong",
            flush=True,
        )
    return findings


def run_example(
    name: str, target: Target, seed: int, number: int, scratch: Path, kept: Path
) -> tuple[list[Finding], bool]:
    """One example: what went wrong, and whether it opened."""
    random = Random(f"{seed} {name} {number}")
    outside, inside = scratch / "outside", scratch / "inside"
    for folder in (outside, inside):
        shutil.rmtree(folder, ignore_errors=True)
    outside.mkdir()
    (outside / "secret").write_text("not for you\n")
    inside.mkdir()
    target.damage(random, inside / "input", outside / "secret")
    shutil.rmtree(scratch / "copy", ignore_errors=True)
    shutil.copytree(inside, scratch / "copy", symlinks=True, copy_function=_copied)
    before = _listing(scratch)
    try:
        opened = _attempt(lambda: target.open(inside / "input", random))
        if (after := _listing(scratch)) != before:
            raise Wrong(f"touched {sorted(map(str, after ^ before))[0]}")
        return [], opened
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = kept / f"{name}-{seed}-{number}"
        shutil.rmtree(where, ignore_errors=True)
        where.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(scratch / "copy", where, symlinks=True, copy_function=_copied)
        reason = str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}"
        (where / "reason.txt").write_text("".join(traceback.format_exception(error)), errors="replace")
        print(f"{name} {number}: {reason[:300]!r}; kept in {where}", flush=True)
        return [Finding(name, number, reason, where)], False


def _copied(source: str, target: str) -> None:
    if os.path.isfile(source):
        shutil.copy2(source, target, follow_symlinks=False)
    else:
        os.mkfifo(target)


def _listing(scratch: Path) -> set[tuple[str, int, int]]:
    """Everything that an example must leave alone."""
    places = [p for top in ("outside", "sample", "inside/input") for p in [scratch / top, *(scratch / top).rglob("*")]]
    return {(str(p), s.st_size, s.st_mtime_ns) for p in [scratch, *places] if p.exists() for s in [p.lstat()]}


def _attempt(work: Callable[[], None]) -> bool:
    """Whether it opens; Wrong if it does anything but that and refusing."""
    from dslide.errors import UserError

    printed = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), warnings.catch_warnings(),
            _bounded_memory(), _bounded_time(),
        ):  # fmt: skip
            warnings.simplefilter("error")
            work()
    except UserError as error:
        check_sentence(str(error))
        return False
    finally:
        text = printed.getvalue()
    if text:
        raise Wrong(f"printed {text[:200]!r}")
    return True


def check_sentence(message: str) -> None:
    """Wrong if it is not one line for people."""
    rest = re.sub(r"/\S+", "", message)
    if not message.strip() or len(rest) > MESSAGE:
        raise Wrong(f"a sentence of {len(rest)} characters: {message[:200]!r}")
    if any(not (c.isprintable() or c == " ") for c in message):
        raise Wrong(f"a sentence that is not one printable line: {message[:500]!r}")
    if re.search(r"Traceback|object at 0x|Error\(", message):
        raise Wrong(f"a sentence for programmers: {message[:500]!r}")


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    """Limits the address space; not under the address sanitizer, which takes terabytes of it."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def _bounded_time() -> Iterator[None]:
    def too_long(_signal: int, _frame: FrameType | None) -> None:
        raise Wrong(f"took longer than {SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together (default: 10)")
    parser.add_argument("--examples", type=int, help="of each target, in place of a time")
    parser.add_argument("--seed", type=int, help="of the damage (default: another each time)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="a single example")
    arguments = parser.parse_args()
    names = arguments.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"there is no target {unknown.pop()}, only {', '.join(TARGETS)}")
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)

    def numbers() -> Iterator[int]:
        if arguments.only is not None:
            yield arguments.only
        elif arguments.examples is not None:
            yield from range(arguments.examples)
        else:
            end, number = time.monotonic() + 60 * arguments.minutes / len(names), 0
            while time.monotonic() < end:
                yield number
                number += 1

    findings = check_targets(names, seed, numbers)
    print(f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
