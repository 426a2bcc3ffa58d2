"""Replaces a folder by a new one such that a crash or a failure at any moment leaves a complete one.

The new folder is written as NAME.new and renamed when it is complete; the old one is kept as NAME.old until then. The
ranks of a job write it together. Of those that share a disk the lowest makes, renames and removes the folders there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dslide.checkpoint.disks import T, find_disks, leads, on_disks
from dslide.checkpoint.manifest import remove_model
from dslide.comm import Communicator
from dslide.errors import ModelError
from dslide.util.atomic import sync
from dslide.util.plain import is_plain_folder


def beside(folder: Path, suffix: str) -> Path:
    """The folder with this suffix to its name."""
    return folder.with_name(folder.name + suffix)


class Replacement:
    """A new folder that is being written, on one rank."""

    def __init__(self, folder: Path, comm: Communicator) -> None:
        self.folder, self.comm = folder, comm
        self.new, self.old = beside(folder, ".new"), beside(folder, ".old")
        self.leads = True  # whether this rank is the lowest of those that share its disk
        self.made = self.in_place = False  # what this rank has done

    def together(self, what: str, work: Callable[[], T]) -> T:
        """Does the work on every rank; ModelError on all of them if it fails on the disk of one."""
        return on_disks(self.comm, what, f"{self.folder}: the model can't be saved", work)

    def leaders(self, what: str, work: Callable[[], None]) -> None:
        """Does the work on the lowest rank of each disk; ModelError on all ranks if it fails on the disk of one."""
        self.together(what, lambda: work() if self.leads else None)

    def prepare(self, holds: Callable[[Path], bool]) -> None:
        """Makes the new folder, empty."""
        recover(self.folder)
        if is_plain_folder(self.folder, ModelError) and not holds(self.folder):
            raise ModelError(f"{self.folder}: exists and is not a model folder, so it is not replaced")
        if is_plain_folder(self.new, ModelError):
            _remove(self.new)  # left by a crash
        self.new.mkdir(parents=True)
        self.made = True

    def put_in_place(self) -> None:
        """Renames the new folder to the name of the old one."""
        if self.folder.exists():
            self.folder.rename(self.old)
        self.new.rename(self.folder)
        self.in_place = True
        sync(self.folder.parent)

    def undo(self) -> None:
        """Restores the old folder and removes what this rank has made."""
        with suppress(OSError, ModelError):  # in the worst case NAME.old stays, which loading finds
            if self.in_place:
                self.folder.rename(self.new)
            if self.made:
                remove_model(self.new)
                recover(self.folder)
            else:
                self.new.rmdir()  # fails if it is not empty: then other ranks remove it


@contextmanager
def replacement(folder: Path, comm: Communicator, holds: Callable[[Path], bool]) -> Iterator[Replacement]:
    """Makes NAME.new, to which the body writes through `together` and `leaders`, and renames it afterwards; if anything
    fails on any rank, nothing changes on any. `holds` says whether a folder may be replaced. A collective."""
    work = Replacement(folder, comm)
    try:
        if comm.size > 1:
            work.together("folder to save in", lambda: work.new.mkdir(parents=True, exist_ok=True))
            work.leads = leads(comm.rank, find_disks(work.new, comm))
        work.leaders("new folder", lambda: work.prepare(holds))
        yield work
        work.leaders("new folder in its place", work.put_in_place)
    except ModelError:  # on all ranks alike, none of which is writing any more
        work.undo()
        comm.barrier("failed save undone")
        raise
    except BaseException:  # Ctrl-C or a lost rank: nothing incomplete is left
        if not work.in_place:  # else it is complete here but perhaps not on other disks, so NAME.old stays
            work.undo()
        raise
    if work.leads:
        with suppress(OSError):
            remove_model(work.old)


def recover(folder: Path) -> None:
    """Ends a replacement that was interrupted: restores the old folder, or removes it if the new one is in place."""
    old = beside(folder, ".old")
    if is_plain_folder(old, ModelError):
        if os.path.lexists(folder):
            _remove(old)
        else:
            old.rename(folder)


def _remove(folder: Path) -> None:
    if not remove_model(folder):
        raise ModelError(f"{folder}: has files that are not of a model, so it is not removed; move it away")
