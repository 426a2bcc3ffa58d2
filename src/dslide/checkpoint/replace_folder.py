"""Puts a new folder in the place of an old one: whatever moment a crash or a failure picks, a complete one is left.

The new folder is written beside its place as NAME.new and renamed when it is complete; what was there is kept as
NAME.old until then. The ranks of a job write it together, each into the disk that it sees. Ranks that share a disk are
led by the lowest of them, which makes, renames and removes its folders.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from dslide.checkpoint.disks import find_disks, leads
from dslide.comm import Communicator
from dslide.data.files import sync
from dslide.errors import ModelError

T = TypeVar("T")


def beside(folder: Path, suffix: str) -> Path:
    """The folder's neighbour of that name."""
    return folder.with_name(folder.name + suffix)


class Replacement:
    """A new folder in the making, as one rank sees it."""

    def __init__(self, folder: Path, comm: Communicator) -> None:
        self.folder, self.comm = folder, comm
        self.new, self.old = beside(folder, ".new"), beside(folder, ".old")
        self.leads = True  # whether the rank is the lowest of those that share its disk
        self.made = self.in_place = False  # by this rank

    def together(self, what: str, work: Callable[[], T]) -> T:
        """Does something on every rank; ModelError on all of them if a rank's disk refuses."""

        def attempt() -> T:
            try:
                return work()
            except OSError as error:
                raise ModelError(f"{self.folder}: the model can't be saved: {error.strerror or error}") from None

        return self.comm.together(what, attempt)

    def leaders(self, what: str, work: Callable[[], None]) -> None:
        """The same on those ranks that lead."""
        self.together(what, lambda: work() if self.leads else None)

    def find_leader(self) -> None:
        """Finds out who else sees this folder."""
        self.together("folder to save in", lambda: self.new.mkdir(parents=True, exist_ok=True))
        self.leads = leads(self.comm.rank, find_disks(self.new, self.comm))

    def prepare(self, holds: Callable[[Path], bool]) -> None:
        """Makes the new folder, empty."""
        recover(self.folder)
        if self.folder.exists() and not holds(self.folder):
            raise ModelError(f"{self.folder}: exists and is not a model folder, so it is not replaced")
        if self.new.exists():
            shutil.rmtree(self.new)  # what a crash left
        self.new.mkdir(parents=True)
        self.made = True

    def put_in_place(self) -> None:
        """The new folder takes the place of the old one."""
        sync(self.new)
        if self.folder.exists():
            self.folder.rename(self.old)
        self.new.rename(self.folder)
        self.in_place = True
        sync(self.folder.parent)

    def undo(self) -> None:
        """Back to the old folder; what this rank has made goes."""
        with suppress(OSError):  # in the worst case NAME.old stays, which loading finds
            if self.in_place:
                self.folder.rename(self.new)
            if self.made:
                shutil.rmtree(self.new, ignore_errors=True)
                recover(self.folder)
            else:
                self.new.rmdir()  # fails if there is something in it, which others remove


@contextmanager
def replacement(folder: Path, comm: Communicator, holds: Callable[[Path], bool]) -> Iterator[Replacement]:
    """Makes NAME.new for the block to write to, through `Replacement.together` and `leaders`; afterwards it is the
    folder. If that fails, on any rank, nothing is changed on any. `holds` says whether a folder may be replaced."""
    work = Replacement(folder, comm)
    try:
        if comm.size > 1:
            work.find_leader()
        work.leaders("new folder", lambda: work.prepare(holds))
        yield work
        work.leaders("new folder in its place", work.put_in_place)
    except ModelError:  # on all ranks alike, none of which is writing any more
        work.undo()
        comm.barrier("failed save undone")
        raise
    except BaseException:  # Ctrl-C or a lost rank: nothing half-written stays
        if not work.in_place:  # else it is complete; whether it is so on other disks can't be known, so NAME.old stays
            work.undo()
        raise
    if work.leads:
        shutil.rmtree(work.old, ignore_errors=True)


def recover(folder: Path) -> None:
    """Ends a replacement that was cut short: back to the old folder, or rid of it if the new one is there."""
    old = beside(folder, ".old")
    if old.exists():
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)
