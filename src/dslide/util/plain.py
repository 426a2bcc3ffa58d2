"""Files and folders from an untrusted source: models, runs and converted folders that somebody else may have made.

Symbolic links are refused, since they may lead out of the folder, and so are pipes and devices, which may never end.
Only files of known names are removed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

Error = Callable[[str], Exception]  # makes the error to raise of its message

_READ, _APPEND = os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_APPEND


def open_plain(path: str | Path, error: Error) -> IO[bytes]:
    """Opens a regular file for reading."""
    return os.fdopen(_open(path, _READ, error), "rb")


def open_to_append(path: str | Path, error: Error) -> IO[bytes]:
    """Opens a regular file, which is made if it is not there, to read it and to write at its end; unbuffered. The error
    is for links and the like; OSError if it can't be written."""
    return os.fdopen(_open(path, _APPEND, error), "rb+", buffering=0)


def read_plain(path: str | Path, error: Error, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    with open_plain(path, error) as file:
        try:
            content = file.read(limit + 1)
        except OSError as problem:
            raise error(f"{path}: can't be read: {problem.strerror}") from None
    if len(content) > limit:
        raise error(f"{path}: is longer than {limit:,} bytes")
    return content


def _open(path: str | Path, flags: int, error: Error) -> int:
    try:
        # without O_NONBLOCK, opening a pipe waits for the other end
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise error(f"{path}: is a link, expected a file") from None
        if problem.errno in (errno.ENXIO, errno.EISDIR):  # a socket; a folder to write to
            raise error(f"{path}: is not a regular file") from None
        if flags != _READ:
            raise
        raise error(f"{path}: can't be read: {problem.strerror}") from None
    try:
        regular = stat.S_ISREG(os.fstat(handle).st_mode)
    except OSError as problem:
        os.close(handle)
        raise error(f"{path}: can't be read: {problem.strerror}") from None
    if not regular:
        os.close(handle)
        raise error(f"{path}: is not a regular file")
    return handle


def is_plain_folder(path: Path, error: Error) -> bool:
    """Whether there is such a folder; the error if there is something else of this name."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as problem:
        raise error(f"{path}: can't be read: {problem.strerror}") from None
    if not stat.S_ISDIR(mode):
        raise error(f"{path}: is a link, expected a folder" if stat.S_ISLNK(mode) else f"{path}: is not a folder")
    return True


def make_plain_folder(path: Path, error: Error) -> None:
    """Makes a folder, and those it is in, unless it is there."""
    with suppress(FileExistsError):  # something else than a folder: said below
        path.mkdir(parents=True, exist_ok=True)
    is_plain_folder(path, error)


def remove_plain_folder(path: Path, known: Callable[[str], bool], first: str) -> bool:
    """Removes the files of a folder whose names are known, `first` before the others, and the folder if it is empty
    then; whether it was. Links are removed themselves, not what they lead to. OSError if something can't be removed."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, "is a link" if stat.S_ISLNK(mode) else "is not a folder", str(path))
    names = sorted(os.listdir(path), key=lambda name: (name != first, name))
    for name in names:
        if known(name) and not _is_folder(path / name):
            os.unlink(path / name)
    try:
        os.rmdir(path)
    except OSError as problem:
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)
