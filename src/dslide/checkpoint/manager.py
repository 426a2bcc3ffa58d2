"""Saves a run while it trains: RUN/checkpoints/step-000001234, each a model folder that training can go on from.

A checkpoint is made in parts: arrays of every rank, then the small files and the manifest of every disk, then, where
ranks have disks of their own, copies of the arrays for another disk, then the removal of old checkpoints. A thread does
the work of a part while training goes on; that it is done is told with the summaries of steps, so that all ranks know
it at the same step. Then they exchange what came of it, and the next part begins. At the end of a run the same parts
are done at once.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from dslide.checkpoint.disks import buddy, find_disks, leads
from dslide.checkpoint.manifest import MANIFEST, OPTIMIZER, UNFINISHED, WEIGHTS, Entry, shard_file
from dslide.checkpoint.memory import room
from dslide.checkpoint.replicator import Replicator
from dslide.checkpoint.run_folder import CHECKPOINTS, LATEST, checkpoint_name, checkpoints, steps_of
from dslide.checkpoint.saved_model import SavedModel, write_rest, write_shard
from dslide.checkpoint.snapshot import Cancelled, Snapshot
from dslide.checkpoint.tensor_file import Array
from dslide.comm import Communicator, ranks_in_words
from dslide.comm.votes import Vote
from dslide.data.files import sync
from dslide.errors import Diverged, ModelError, known_to_all
from dslide.model.label_prior import PREFIX
from dslide.model.state_layout import is_parameter
from dslide.model.storage import widened
from dslide.training.callbacks import Callback

if TYPE_CHECKING:
    from dslide.training.callbacks import StepInfo
    from dslide.training.trainer import Trainer

COPY_LOOK = 0.05  # seconds between looks whether copies have arrived


@dataclass
class Part:
    """Something to do for a checkpoint, in words and as a function; what the function gives must be plain JSON."""

    what: str
    work: Callable[[], Any]


Parts = Generator[Part, list[Any], None]  # is given what the work came to on every rank, in rank order


class CheckpointManager(Callback):
    """The checkpoints of one run, as one of its ranks sees them. `model` describes the run as it is now; `tell` is
    called with sentences about checkpoints that failed, on rank 0; `last` is the one that training goes on from."""

    def __init__(
        self, run: Path, comm: Communicator, model: Callable[[], SavedModel], seconds: float, kept: int,
        tell: Callable[[str], None], last: Path | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.comm = run / CHECKPOINTS, comm
        self._model, self._seconds, self._kept, self._tell = model, seconds, kept, tell
        comm.together("folder of checkpoints", self._make_folder)
        disks = find_disks(self.folder, comm)
        self._leads, self._buddy = leads(comm.rank, disks), buddy(comm.rank, disks)
        self._replicator = Replicator(comm, self.folder) if len(disks) > 1 else None
        self._copies_unwanted = threading.Event()
        self._written: dict[str, tuple[Entry, Path]] = {}  # small files that stay the same
        self._begun = time.monotonic()
        self._job: _Job | None = None
        self._worker = _Worker()
        self.last = last  # the newest complete one
        self._copied = ""  # the name of the newest whose arrays have a copy on another disk

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModelError(f"{self.folder}: can't be made: {error.strerror or error}") from None

    # ---- while training goes on -----------------------------------------------------------------------------------

    def vote(self, trainer: Trainer) -> Vote:
        """What this rank votes for in the coming step."""
        if self._job is not None:
            return Vote.CHECKPOINT_STAGE_DONE if self._job.ready else Vote.NONE
        due = self._seconds > 0 and time.monotonic() - self._begun >= self._seconds
        return Vote.CHECKPOINT_DUE if due and self.comm.rank == 0 else Vote.NONE

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        if self._job is None:
            if trainer.votes.any & Vote.CHECKPOINT_DUE:
                self._job = self._new_job(trainer)
                self._job.begin_part()
        elif trainer.votes.all & Vote.CHECKPOINT_STAGE_DONE:
            try:
                self._next_part(self._job)
            except ModelError as error:
                if self.comm.rank == 0:
                    self._tell(f"{error}; training goes on, and {self.last_in_words()}")

    # ---- at once ----------------------------------------------------------------------------------------------------

    def save(self, trainer: Trainer) -> None:
        """Saves the run as it is now. All ranks call it together; ModelError on all if one can't. Nothing else is to be
        done, so copies for other disks may take all of the link."""
        if self._replicator is not None:
            self._replicator.share = 1.0
        job = self._job
        if job is not None and job.steps != trainer.step:
            self._cancel(job)
            job = None
        if job is None:
            if self.last is not None and self.last.name == checkpoint_name(trainer.step):
                return
            self._job = job = self._new_job(trainer)
            job.begin_part()
        while self._job is not None:
            job.wait()
            self._next_part(job)

    def close(self) -> None:
        """Ends what works in the background. All ranks call it, after `save`."""
        if self._replicator is not None:
            self.comm.barrier("copies on other disks done")
            self._replicator.close()
        self._worker.end()

    def last_in_words(self) -> str:
        """Says which checkpoint is the newest complete one."""
        return "there is no checkpoint yet" if self.last is None else f"the last checkpoint is {self.last}"

    # ---- the parts of a checkpoint ---------------------------------------------------------------------------------

    def _new_job(self, trainer: Trainer) -> _Job:
        self._begun = time.monotonic()
        model = self._model()
        size = sum(array.nbytes for array in model.state.values())
        snapshot = Snapshot(model.state, room(size))
        trainer.network.watch(snapshot)
        folder = self.folder / checkpoint_name(trainer.step)
        return _Job(self._worker, trainer, folder, snapshot, self._parts(trainer, folder, model, snapshot))

    def _parts(self, trainer: Trainer, folder: Path, model: SavedModel, snapshot: Snapshot) -> Parts:
        steps = trainer.step
        each = yield Part("arrays of a checkpoint", lambda: self._write_arrays(folder, model, snapshot))
        entries = {name: entry for own in each for name, entry in own.items()}
        yield Part("checkpoint completed", lambda: self._complete(folder, model, entries))
        self.last = folder
        for callback in trainer.callbacks:
            callback.on_checkpoint(trainer, steps)
        if self._replicator is not None:
            problems = yield Part("copies on other disks", lambda: self._send_copies(folder))
            for problem in filter(None, problems if self.comm.rank == 0 else ()):
                self._tell(f"{problem}; a copy on another disk is missing")
            if not any(problems):
                self._copied = folder.name
        yield Part("old checkpoints removed", lambda: self._remove_old(folder))

    def _write_arrays(self, folder: Path, model: SavedModel, snapshot: Snapshot) -> dict[str, Entry]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return write_shard(folder, model, self.comm, read=lambda name: finite_pieces(name, snapshot.read(name)))
        finally:
            snapshot.close()  # also if it failed: training must not wait for what nobody reads

    def _complete(self, folder: Path, model: SavedModel, entries: dict[str, Entry]) -> None:
        if self._leads:
            for path in folder.iterdir():
                if path.name not in entries:
                    path.unlink()  # what a crash left
            write_rest(folder, model, self.comm.size, entries, before=self._written)
            sync(folder)
            name_latest(self.folder, folder.name)

    def _send_copies(self, folder: Path) -> str:
        """Gives the own arrays to a rank with another disk; why that failed, or nothing."""
        assert self._replicator is not None
        assert self._buddy is not None
        names = [shard_file(kind, self.comm.rank, self.comm.size) for kind in (OPTIMIZER, WEIGHTS)]
        copies = [self._replicator.send(self._buddy, folder / name, f"{folder.name}/{name}") for name in names]
        while any(copy.state == "running" for copy in copies):
            if self._copies_unwanted.wait(COPY_LOOK):
                return ""
        return "; ".join(copy.error for copy in copies if copy.error)

    def _remove_old(self, newest: Path) -> None:
        """Removes checkpoints but for the newest, and what was never completed. Those of more steps stay: disks that
        are not here now may have what they lack. So does the last one with copies on other disks."""
        if not self._leads:
            return
        complete = [path for path in checkpoints(self.folder.parent).values() if path.name <= newest.name]
        kept = {path.name for path in complete[-self._kept :]} | {self._copied}
        for path in self.folder.iterdir():
            if steps_of(path.name) is not None and path.name < newest.name and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)

    # ---- how they are done -----------------------------------------------------------------------------------------

    def _next_part(self, job: _Job) -> None:
        """Ends a part on all ranks and begins the next. If it failed, the checkpoint is given up, and ModelError or
        Diverged raised on all of them."""
        outcomes = self.comm.gather_objects(job.part.what, [job.problem, job.diverged, job.result])
        diverged = next((words for _, words, _ in outcomes if words), None)
        problems = [(rank, words) for rank, (words, _, _) in enumerate(outcomes) if words]
        if not diverged and not problems:
            if not job.next_part([result for _, _, result in outcomes]):
                self._job = None
            return
        self._give_up(job)
        if diverged:
            raise Diverged(diverged)
        who = ranks_in_words([rank for rank, _ in problems]) + ": " if self.comm.size > 1 else ""
        raise known_to_all(ModelError(f"{who}{job.folder}: the checkpoint can't be written: {problems[0][1]}"))

    def _cancel(self, job: _Job) -> None:
        """Gives up a checkpoint that is being written, on all ranks; or what is still to be done for one that is."""
        job.snapshot.close()
        self._copies_unwanted.set()
        job.wait()
        self.comm.barrier("checkpoint cancelled")
        self._copies_unwanted.clear()
        self._give_up(job)

    def _give_up(self, job: _Job) -> None:
        job.end()
        self._job = None
        if self._leads and not (job.folder / MANIFEST).exists():  # an earlier start may have completed one of this step
            shutil.rmtree(job.folder, ignore_errors=True)


class _Job:
    """A checkpoint in the making."""

    def __init__(self, worker: _Worker, trainer: Trainer, folder: Path, snapshot: Snapshot, parts: Parts) -> None:
        self.steps, self.folder, self.snapshot = trainer.step, folder, snapshot
        self._trainer, self._rate = trainer, trainer.rate
        self._parts = parts
        self.part = next(parts)
        self.problem = self.diverged = ""
        self.result: Any = None
        self._worker, self._done = worker, threading.Event()

    @property
    def ready(self) -> bool:
        """Whether the part is done, or has failed."""
        return self._done.is_set()

    def begin_part(self) -> None:
        self._done.clear()
        self._worker.tasks.put(self._run)

    def wait(self) -> None:
        self._done.wait()

    def next_part(self, results: list[Any]) -> bool:
        """Begins the next part; False if there is none."""
        try:
            self.part = self._parts.send(results)
        except StopIteration:
            self.end()
            return False
        self.begin_part()
        return True

    def end(self) -> None:
        """Nothing is watched any more."""
        self.snapshot.close()
        self._trainer.network.watch(None)
        self._parts.close()

    def _run(self) -> None:
        try:
            self.result = self.part.work()
        except NotFinite as error:
            self.diverged = f"training diverged: {error} at step {self.steps} with learning rate {self._rate:g}"
        except Cancelled:
            self.problem = "it was cancelled"
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            self.problem = f"{name}{error.strerror or error}"
        except Exception as error:  # the thread must go on
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self._done.set()


class _Worker:
    """A thread that does the work. It is there from the beginning: where memory has run out, a new thread may neither
    begin nor fail, and whoever starts it waits for ever."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="dslide-checkpoint", daemon=True).start()

    def _run(self) -> None:
        while (task := self.tasks.get()) is not None:
            task()
            del task  # else the network lives as long as this thread

    def end(self) -> None:
        self.tasks.put(None)


class NotFinite(ArithmeticError):
    """Weights that are no numbers, which a checkpoint must not keep."""


def finite_pieces(name: str, pieces: Iterable[Array]) -> Iterator[Array]:
    """The pieces of an array; NotFinite if they are weights, and not all finite."""
    checked = is_parameter(name) and not name.startswith(PREFIX)
    for piece in pieces:
        if checked and not np.isfinite(widened(piece)).all():
            raise NotFinite(f"{name.replace('.', ': ')} not finite")
        yield piece


def name_latest(folder: Path, name: str) -> None:
    """Lets `latest` name a checkpoint; on disk when this returns."""
    unfinished = folder / (LATEST + UNFINISHED)
    with open(unfinished, "w", encoding="ascii") as file:
        file.write(name + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(folder / LATEST)
    sync(folder)
