"""What a conversion that was killed has left beside the folder that it was to make."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MARK = "x_indptr.i64"  # the first file of every conversion


@contextmanager
def without_leftovers(partial: Path, target: Path) -> Iterator[None]:
    """Locks the unfinished folder of a conversion to `target`, and removes those of earlier ones that nobody holds."""
    handle = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.partial")
        for path in partial.parent.iterdir():
            if path != partial and pattern.fullmatch(path.name) and not path.is_symlink() and (path / _MARK).is_file():
                _remove_if_free(path)
        yield
    finally:
        os.close(handle)


def _remove_if_free(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass  # another process is at work in it
    finally:
        os.close(handle)
