"""Files and folders that appear complete or not at all: they are written under a temporary name beside their place,
flushed to disk and renamed. After an error nothing is left."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO, cast

from dslide.errors import DataError


def sync(path: Path) -> None:
    """Makes a file, or the names in a folder, survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")


class AtomicFile:
    """A file that takes the name `target`, in place of any file of that name, with `commit`. As a context manager it
    gives the file to write to, and commits unless there is an error. Bytes are written, or text if an encoding is
    given."""

    def __init__(self, target: str | Path, encoding: str | None = None, errors: str | None = None) -> None:
        self._target = Path(target)
        self._temporary = _temporary(self._target)
        mode = "xb" if encoding is None else "x"
        self.file: IO[Any] = open(self._temporary, mode, encoding=encoding, errors=errors)  # noqa: SIM115

    def commit(self) -> None:
        """Puts the file in its place; it is on disk when this returns."""
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            self._temporary.replace(self._target)
        except BaseException:
            self.discard()
            raise
        sync(self._target.parent)

    def discard(self) -> None:
        """Removes what was written."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> IO[Any]:
        return self.file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()


@contextmanager
def new_file(target: str | Path) -> Iterator[TextIO]:
    """An atomic text file; DataError if the target exists or can't be written."""
    try:
        if os.path.lexists(target):
            raise DataError(f"{target}: exists already, give another name or remove it")
        with AtomicFile(target, encoding="utf-8") as file:
            yield cast(TextIO, file)
    except OSError as error:
        raise DataError(f"{target}: can't be written: {error.strerror}") from None


@contextmanager
def new_folder(target: str | Path, begun: Path | None = None, kept_with: str = "") -> Iterator[Path]:
    """A folder that takes the name `target` at the end; DataError if that exists or can't be written. After Ctrl-C it
    stays under its temporary name if it has a file `kept_with`: to be given as `begun` later."""
    target = Path(target)
    if os.path.lexists(target):
        raise DataError(f"{target}: exists already, give another name or remove it")
    if target.parent.exists() and not target.parent.is_dir():
        raise DataError(f"{target}: can't be written, {target.parent} is not a folder")
    temporary, kept = begun or _temporary(target), False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir(exist_ok=begun is not None)
        try:
            yield temporary
            for file in temporary.iterdir():
                sync(file)
            sync(temporary)
            if os.path.lexists(target):  # rename would replace an empty folder
                raise DataError(f"{target}: was made by someone else in the meantime")
            temporary.rename(target)
            sync(target.parent)
        except KeyboardInterrupt:
            kept = bool(kept_with) and (temporary / kept_with).exists()
            raise
        finally:
            if not kept:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DataError(f"{target}: can't be written, there is no space left on the disk") from None
        raise DataError(f"{target}: can't be written: {error.strerror}") from None
