"""Writes checkpoints of a run while it trains, from which training can be resumed.

A checkpoint is made in stages: the arrays of every rank; then the small files and the manifest on every disk; then,
where ranks have disks of their own, copies of the arrays on another disk; then the removal of old checkpoints. A thread
does the work of a stage while training continues. Each rank votes with its steps that its stage is done, so that all
ranks see at the same step that all are done; they then gather the results and begin the next stage.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from dslide.checkpoint.collective_load import open_checkpoint, restore_network
from dslide.checkpoint.disks import buddy, find_disks, leads, on_disks
from dslide.checkpoint.manifest import (
    MANIFEST,
    OPTIMIZER,
    WEIGHTS,
    Entry,
    is_model_file,
    remove_model,
    shard_file,
)
from dslide.checkpoint.replicator import Replicator
from dslide.checkpoint.run_folder import CHECKPOINTS, LATEST, checkpoint_name, checkpoints, folders
from dslide.checkpoint.saved_model import SavedModel, write_rest, write_shard
from dslide.checkpoint.snapshot import Cancelled, Snapshot, buffer_bytes
from dslide.comm import Communicator, ranks_in_words
from dslide.comm.votes import Vote, Votes
from dslide.errors import Diverged, ModelError, UserError, known_to_all
from dslide.model.network import Network
from dslide.model.state_layout import must_be_finite
from dslide.model.storage import widened
from dslide.util.arrays import Array
from dslide.util.atomic import AtomicFile
from dslide.util.plain import make_plain_folder

COPY_POLL = 0.05  # seconds between checks whether copies have arrived


class Training(Protocol):
    """The training whose state is saved, such as a `Trainer`."""

    network: Network
    step: int  # steps done
    rate: float  # learning rate of the last step


_Tasks = SimpleQueue[Callable[[], None] | None]
Stage = tuple[str, Callable[[], Any]]  # its name and its work, the result of which must be plain JSON
Stages = Generator[Stage, Any, None]  # receives the results of a stage on all ranks, in rank order


class CheckpointManager:
    """The checkpoints of one run, on one of its ranks. `model` describes the run at present. One is written every
    `seconds` (0: only by `save`), and the newest `kept` are kept. On rank 0 `warn` is called with a sentence about each
    that failed; on all ranks `on_complete` with the number of steps of each complete one. `last` is the checkpoint that
    training resumed from, `kept_step` the step of the one that was kept by then, and `check` raises ModelError if
    checkpoints must not be completed any more."""

    def __init__(
        self, run: Path, comm: Communicator, training: Training, model: Callable[[], SavedModel], *,
        seconds: float, kept: int, warn: Callable[[str], None],
        on_complete: Callable[[int], None] = lambda step: None, last: Path | None = None, kept_step: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.folder, self.comm = run / CHECKPOINTS, comm
        self._training, self._model, self._seconds, self._kept = training, model, seconds, kept
        self._warn, self._on_complete, self._check = warn, on_complete, check
        make = partial(make_plain_folder, self.folder, ModelError)
        on_disks(comm, "folder of checkpoints", f"{self.folder}: can't be made", make)
        disks = find_disks(self.folder, comm)
        self._leads, self._buddy = leads(comm.rank, disks), buddy(comm.rank, disks)
        self._replicator = Replicator(comm, self.folder) if len(disks) > 1 else None
        self._copies_cancelled = threading.Event()
        self._written: dict[str, list[tuple[Entry, Path]]] = {}  # files that do not change, as last written
        self._begun = time.monotonic()  # when the last checkpoint was
        self._version: int | None = None  # of the network that it has; None: as it was loaded
        self._pending: _PendingCheckpoint | None = None
        self._tasks = _start_worker()
        self.last = last  # the newest complete one
        self._copied = ""  # the name of the newest whose arrays have copies on other disks
        self._kept_name = "" if not kept_step else checkpoint_name(kept_step)  # the complete one that `keep` began
        self._keeping = ""  # the name of one that it began and that is not complete

    def vote(self) -> Vote:
        """What this rank votes for in the coming step."""
        if self._pending is not None:
            return Vote.CHECKPOINT_STAGE_DONE if self._pending.stage_done.is_set() else Vote.NONE
        due = self._seconds > 0 and time.monotonic() - self._begun >= self._seconds
        return Vote.CHECKPOINT_DUE if due and self.comm.rank == 0 else Vote.NONE

    def after_step(self, votes: Votes) -> None:
        """Begins a checkpoint or its next stage if the votes of the step say so. All ranks call it after every step."""
        if self._pending is None:
            if votes.any & Vote.CHECKPOINT_DUE:
                self._begin()
        elif votes.all & Vote.CHECKPOINT_STAGE_DONE:
            self._warn_of_failure(partial(self._next_stage, self._pending))

    def _warn_of_failure(self, write: Callable[[], None]) -> None:
        try:
            write()
        except ModelError as error:
            if self.comm.rank == 0:
                self._warn(f"{error}; training continues, and {self.last_in_words()}")

    def keep(self) -> None:
        """Begins a checkpoint of the run as it is now, which stays until another one is kept. A collective."""
        name = checkpoint_name(self._training.step)
        if self._pending is not None and self._pending.folder.name != name:
            self._cancel(self._pending)
        if self.last is not None and self.last.name == name:
            self._kept_name = name
            return
        self._keeping = name
        if self._pending is None:
            self._begin()

    def restore(self, step: int) -> None:
        """Gives the network the state of the checkpoint after `step` steps, which was kept. A collective; ModelError on
        all ranks if that can't be read."""
        self._complete_pending()
        saved = open_checkpoint(self.folder, checkpoint_name(step), self.comm)
        restore_network(self._training.network, saved.state)
        now = self.folder / checkpoint_name(self._training.step)
        if self.last == now:  # which has another network than this
            on_disks(self.comm, "checkpoint to remove", f"{now}: can't be removed", partial(remove_model, now))
            self.last = self.folder / checkpoint_name(step)

    def save(self) -> None:
        """Saves the run as it is now. A collective; ModelError on all ranks if one can't."""
        if self._replicator is not None:
            self._replicator.share = 1.0  # training has paused and needs none of the link
        name = checkpoint_name(self._training.step)
        # After the last step the network may have been calibrated, or have got linear classifiers.
        changed = self._version not in (None, self._training.network.version)
        if self._pending is not None and (changed or self._pending.folder.name != name):
            if self._pending.folder.name == self._keeping:
                self._warn_of_failure(self._complete_pending)
            else:
                self._cancel(self._pending)
        if self.last is None or self.last.name != name or changed:
            if self._pending is None:
                self._begin()
            self._complete_pending()

    def _complete_pending(self) -> None:
        while self._pending is not None:
            self._pending.stage_done.wait()
            self._next_stage(self._pending)

    def close(self) -> None:
        """Ends the threads. A collective, after `save`."""
        if self._replicator is not None:
            self.comm.barrier("copies on other disks done")
            self._replicator.close()
        self._tasks.put(None)

    def last_in_words(self) -> str:
        """Says which checkpoint is the newest complete one."""
        return "there is no checkpoint yet" if self.last is None else f"the last checkpoint is {self.last}"

    def _begin(self) -> None:
        self._begun = time.monotonic()
        training, model = self._training, self._model()
        self._version = training.network.version
        snapshot = Snapshot(model.state, buffer_bytes(sum(array.nbytes for array in model.state.values())))
        training.network.watch(snapshot)
        folder = self.folder / checkpoint_name(training.step)
        stages = self._stages(training.step, folder, model, snapshot)
        self._pending = _PendingCheckpoint(self._tasks, training, folder, snapshot, stages)
        self._pending.next_stage()

    def _stages(self, step: int, folder: Path, model: SavedModel, snapshot: Snapshot) -> Stages:
        of_ranks = yield "arrays of a checkpoint", partial(self._write_arrays, folder, model, snapshot)
        entries = {name: entry for own in of_ranks for name, entry in own.items()}
        yield "checkpoint completed", partial(self._complete, folder, model, entries)
        self.last = folder
        if folder.name == self._keeping:
            self._kept_name = folder.name
        self._on_complete(step)
        if self._replicator is not None:
            problems = yield "copies on other disks", partial(self._send_copies, self._replicator, folder)
            for problem in filter(None, problems if self.comm.rank == 0 else ()):
                self._warn(f"{problem}; a copy on another disk is missing")
            if not any(problems):
                self._copied = folder.name
        yield "old checkpoints removed", partial(self._remove_old, folder)

    def _write_arrays(self, folder: Path, model: SavedModel, snapshot: Snapshot) -> dict[str, Entry]:
        try:
            make_plain_folder(folder, ModelError)
            return write_shard(folder, model, self.comm, read=lambda name: finite_pieces(name, snapshot.read(name)))
        finally:
            snapshot.close()  # after an error too: training must not wait for a writer that has ended

    def _complete(self, folder: Path, model: SavedModel, entries: dict[str, Entry]) -> None:
        self._check()
        if self._leads:
            for path in folder.iterdir():
                if path.name not in entries and is_model_file(path.name):
                    path.unlink()  # left by a crash
            name_latest(self.folder, folder.name)  # counts from when the manifest is there, which is written last
            write_rest(folder, model, self.comm, entries, before=self._written)

    def _send_copies(self, replicator: Replicator, folder: Path) -> str:
        """Sends this rank's arrays to a rank with another disk; returns why that failed, or nothing."""
        assert self._buddy is not None
        names = [shard_file(kind, self.comm.rank, self.comm.size) for kind in (OPTIMIZER, WEIGHTS)]
        copies = [replicator.send(self._buddy, folder / name, f"{folder.name}/{name}") for name in names]
        while any(copy.state == "running" for copy in copies):
            if self._copies_cancelled.wait(COPY_POLL):
                return ""
        return "; ".join(copy.error for copy in copies if copy.error)

    def _remove_old(self, newest: Path) -> None:
        """Removes older checkpoints, but for the newest of them, the one that was kept and the last one with copies on
        other disks, and what was never completed. Those of more steps are kept: their missing files may be on disks
        that are absent now."""
        if not self._leads:
            return
        complete = [path for path in checkpoints(self.folder.parent).values() if path.name <= newest.name]
        kept = {path.name for path in complete[-self._kept :]} | {self._copied, self._kept_name}
        for path in folders(self.folder):
            if path.name < newest.name and path.name not in kept:
                _try_to_remove(path)

    def _next_stage(self, pending: _PendingCheckpoint) -> None:
        """Ends a stage on all ranks and begins the next; if it failed on one, abandons the checkpoint and raises."""
        outcomes = self.comm.gather_objects(pending.stage[0], [pending.problem, pending.diverged, pending.result])
        diverged = next((message for _, message, _ in outcomes if message), None)
        problems = [(rank, message) for rank, (message, _, _) in enumerate(outcomes) if message]
        if not diverged and not problems:
            if not pending.next_stage([result for _, _, result in outcomes]):
                self._pending = None
            return
        self._abandon(pending)
        if diverged:
            raise Diverged(diverged)
        who = ranks_in_words([rank for rank, _ in problems]) + ": " if self.comm.size > 1 else ""
        raise known_to_all(ModelError(f"{who}{pending.folder}: the checkpoint can't be written: {problems[0][1]}"))

    def _cancel(self, pending: _PendingCheckpoint) -> None:
        """Ends the present stage of a checkpoint early, on all ranks, and abandons it."""
        pending.snapshot.close()
        self._copies_cancelled.set()
        pending.stage_done.wait()
        self.comm.barrier("checkpoint cancelled")
        self._copies_cancelled.clear()
        self._abandon(pending)

    def _abandon(self, pending: _PendingCheckpoint) -> None:
        pending.end()
        self._pending = None
        if self._leads and not os.path.lexists(pending.folder / MANIFEST):  # else an earlier start has completed it
            _try_to_remove(pending.folder)


class _PendingCheckpoint:
    """A checkpoint that is being written."""

    stage: Stage

    def __init__(self, tasks: _Tasks, training: Training, folder: Path, snapshot: Snapshot, stages: Stages) -> None:
        self.step, self.folder, self.snapshot = training.step, folder, snapshot
        self._network, self._rate = training.network, training.rate
        self._tasks, self._stages = tasks, stages
        self.problem = self.diverged = ""
        self.result: Any = None
        self.stage_done = threading.Event()  # or failed, on this rank

    def next_stage(self, results: list[Any] | None = None) -> bool:
        """Begins the next stage, given the results of the one before; False if there is none."""
        try:
            self.stage = self._stages.send(results)
        except StopIteration:
            self.end()
            return False
        self.stage_done.clear()
        self._tasks.put(self._run)
        return True

    def end(self) -> None:
        """Stops watching the network."""
        self.snapshot.close()
        self._network.watch(None)
        self._stages.close()

    def _run(self) -> None:
        try:
            self.result = self.stage[1]()
        except Diverged as error:
            self.diverged = f"training diverged: {error} at step {self.step} with learning rate {self._rate:g}"
        except Cancelled:
            self.problem = "it was cancelled"
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            self.problem = f"{name}{error.strerror or error}"
        except UserError as error:
            self.problem = str(error)
        except Exception as error:  # the thread must survive
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self.stage_done.set()


def _start_worker() -> _Tasks:
    """Starts the thread that does tasks until one is None. It is started with the run: where memory has run out, a new
    thread may neither start nor fail, and `Thread.start` would wait forever."""
    tasks: _Tasks = SimpleQueue()

    def work() -> None:
        while (task := tasks.get()) is not None:
            task()
            del task  # or the thread would keep the network alive

    threading.Thread(target=work, name="dslide-checkpoint", daemon=True).start()
    return tasks


def finite_pieces(name: str, pieces: Iterable[Array]) -> Iterator[Array]:
    """The pieces of an array; Diverged if it is of weights that are not all finite, which must not be saved."""
    for piece in pieces:
        if must_be_finite(name) and not np.isfinite(widened(piece)).all():
            raise Diverged(f"{name.replace('.', ': ')} not finite")
        yield piece


def _try_to_remove(folder: Path) -> None:
    with suppress(OSError):
        remove_model(folder)


def name_latest(folder: Path, name: str) -> None:
    """Makes `latest` name a checkpoint; on disk when this returns."""
    with AtomicFile(folder / LATEST, encoding="ascii") as file:
        file.write(name + "\n")
