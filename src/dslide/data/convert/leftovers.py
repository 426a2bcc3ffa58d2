"""What a conversion that was interrupted has left beside the folder that it was to make."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dslide.errors import DataError

_MARK = "x_indptr.i64"  # the first file of every conversion


def find_leftover(target: Path, fits: Callable[[Path], bool]) -> Path | None:
    """An unfinished folder of a conversion to `target` to go on with: one that nobody holds, of the same user."""
    try:
        return next((path for path in _leftovers(target) if _is_free(path) and fits(path)), None)
    except OSError:  # making the folder says what is wrong
        return None


def _is_free(path: Path) -> bool:
    """Whether a folder is of this user, and nobody is at work in it."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(handle).st_uid == os.geteuid()
    except BlockingIOError:
        return False
    finally:
        os.close(handle)


@contextmanager
def without_leftovers(partial: Path, target: Path) -> Iterator[None]:
    """Locks the unfinished folder of a conversion to `target`, and removes those of earlier ones that nobody holds."""
    handle = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{target}: is being made by another process") from None
        for path in _leftovers(target):
            if path != partial:
                _remove_if_free(path)
        yield
    finally:
        os.close(handle)


def _leftovers(target: Path) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.partial")
    if not target.parent.is_dir():
        return []
    found = (path for path in target.parent.iterdir() if pattern.fullmatch(path.name))
    return [path for path in found if not path.is_symlink() and (path / _MARK).is_file()]


def _remove_if_free(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass  # another process is at work in it
    finally:
        os.close(handle)
