"""Brings files to other ranks while training goes on, so that what a lost disk held is still somewhere.

A file travels in pieces beside the exchanges (`Communicator.send_side`). Of all that a rank sends, one piece is under
way at a time: the receiver answers when it has written it, and the next one waits until pieces have had no more than
their share of the time (`SHARE`). So whatever the link can carry, files take about that share of it at most. Pieces
grow on fast links, where asking and answering would take longer than sending, and shrink on slow ones, where an
exchange would have to wait behind them.

The receiver decides what it accepts: files of checkpoints (`NAME`), written as NAME.part and renamed when size and
checksum are right and all is on disk. Whatever goes wrong on either side ends the one delivery, with a sentence, and
nothing else. Threads of the replicator's own read and write files; the communicator only passes on what they say.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import struct
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Literal

from dslide.comm import Communicator
from dslide.comm.frames import Buffer
from dslide.data.files import sync
from dslide.errors import CommError

SHARE = 0.1  # of a link's time that files may take while training goes on
PIECE_LEAST, PIECE_MOST = 1 << 16, (1 << 20) - 64  # bytes; with its header the largest is no longer than other frames
PIECE_SECONDS = 0.02  # that a piece should take from being sent to being answered
NAME = re.compile(r"step-[0-9]{9,18}/(weights|optimizer)(-[0-9]{1,5}-of-[0-9]{1,5})?\.safetensors", re.ASCII)

_HEAD = struct.Struct("<BQ")  # what it is, number of the delivery
_BEGIN, _PIECE, _END, _ANSWER = range(4)
_LOOK = 0.2  # seconds after which a thread that waits looks whether there is still something to wait for
_PATIENCE = 10  # times the limit of the communicator that an answer may take: the disk there may be busy
_CLOSED = "the replicator is closed"
_numbers = itertools.count()  # of deliveries, never the same again: late answers are nobody else's


class _Refused(Exception):
    """Why a delivery has failed, in words."""


@dataclass(eq=False)
class Delivery:
    """A file on its way to another rank."""

    to: int
    path: Path
    as_name: str
    state: Literal["running", "done", "failed"] = "running"
    error: str = ""  # why it failed


class Replicator:
    """Sends files to other ranks and takes theirs, which lie under `root`. All ranks make theirs together."""

    def __init__(self, comm: Communicator, root: Path) -> None:
        self._comm, self._root = comm, root
        self.share = SHARE  # of the time; 1: no pauses
        self._waiting: SimpleQueue[Delivery | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[int, str]] = SimpleQueue()
        self._arrived: SimpleQueue[tuple[int, memoryview] | None] = SimpleQueue()
        self._incoming: dict[int, _Incoming] = {}  # by sender
        self._closed = threading.Event()
        comm.on_side(self._take)
        comm.barrier("couriers")  # nobody sends before all can take
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._send_all, "dslide-replicator-out"), (self._receive_all, "dslide-replicator-in"))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, to: int, path: Path, as_name: str) -> Delivery:
        """Begins to bring a file to rank `to`, where it will be `as_name` under that rank's root. Files go one after
        the other. The file must stay as it is until the delivery has ended."""
        if to == self._comm.rank or not 0 <= to < self._comm.size:
            raise ValueError(f"rank {to} is no other rank of {self._comm.size}")
        if self._closed.is_set():
            return Delivery(to, path, as_name, "failed", f"{path}: rank {to} didn't get it: {_CLOSED}")
        delivery = Delivery(to, path, as_name)
        self._waiting.put(delivery)
        return delivery

    def close(self) -> None:
        """Ends all deliveries; those that are not done have failed."""
        if not self._closed.is_set():
            self._closed.set()
            self._comm.on_side(None)
            self._waiting.put(None)
            self._arrived.put(None)
        for thread in self._threads:
            thread.join()

    def _take(self, source: int, content: memoryview) -> None:
        """Called by the communicator, with its lock held: passes on."""
        kind, number = _HEAD.unpack_from(content)
        if kind == _ANSWER:
            self._answers.put((number, str(content[_HEAD.size :], "utf-8")))
        else:
            self._arrived.put((source, content))

    # ---- sending ----------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        while (delivery := self._waiting.get()) is not None:
            try:
                self._send_file(delivery)
                delivery.state = "done"
            except (_Refused, CommError) as error:
                delivery.error, delivery.state = f"{delivery.path}: rank {delivery.to} didn't get it: {error}", "failed"
            except OSError as error:
                delivery.error = f"{delivery.path}: can't be read: {error.strerror or error}"
                delivery.state = "failed"

    def _send_file(self, delivery: Delivery) -> None:
        number, crc, piece_size = next(_numbers), 0, 2 * PIECE_LEAST
        with open(delivery.path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            self._ask(delivery.to, _BEGIN, number, json.dumps([delivery.as_name, size]).encode())
            while piece := file.read(piece_size):
                crc = zlib.crc32(piece, crc)
                begin = time.monotonic()
                self._ask(delivery.to, _PIECE, number, piece)
                took = time.monotonic() - begin
                self._closed.wait(took * (1 / self.share - 1))
                piece_size = next_size(piece_size, took)
        self._ask(delivery.to, _END, number, json.dumps(crc).encode())

    def _ask(self, to: int, kind: int, number: int, content: bytes) -> None:
        """Sends something and waits for the answer; _Refused if it is not that all is well."""
        if self._closed.is_set():
            raise _Refused(_CLOSED)
        self._comm.send_side(to, _HEAD.pack(kind, number) + content)
        patience = time.monotonic() + _PATIENCE * self._comm.limit
        while True:
            with suppress(Empty):
                answered, error = self._answers.get(timeout=_LOOK)
                if answered == number:
                    if error:
                        raise _Refused(error)
                    return
            if lost := _CLOSED if self._closed.is_set() else self._comm.lost(to):
                raise _Refused(lost)
            if time.monotonic() > patience:
                raise _Refused(f"it doesn't answer for {_PATIENCE * self._comm.limit:g} s")

    # ---- receiving --------------------------------------------------------------------------------------------------

    def _receive_all(self) -> None:
        while (arrived := self._arrived.get()) is not None:
            source, content = arrived
            kind, number = _HEAD.unpack_from(content)
            error = self._receive(source, kind, number, content[_HEAD.size :])
            with suppress(CommError):  # the sender is gone, and nobody wants to know
                self._comm.send_side(source, _HEAD.pack(_ANSWER, number) + error.encode())
        for incoming in self._incoming.values():
            incoming.give_up()

    def _receive(self, source: int, kind: int, number: int, content: memoryview) -> str:
        """Does what a sender asks; why it can't be done, or nothing."""
        incoming = self._incoming.get(source)
        try:
            if kind == _BEGIN:
                if incoming is not None:  # the sender has given it up
                    incoming.give_up()
                self._incoming[source] = _Incoming(self._root, number, *json.loads(bytes(content)))
                return ""
            if incoming is None or incoming.number != number:
                return "it knows nothing of the file"
            if kind == _PIECE:
                incoming.write(content)
            else:
                incoming.finish(json.loads(bytes(content)))
                del self._incoming[source]
            return ""
        except _Refused as error:
            words = str(error)
        except OSError as error:
            words = f"{error.filename or self._root}: {error.strerror or error}"
        if (incoming := self._incoming.pop(source, None)) is not None:
            incoming.give_up()
        return words


class _Incoming:
    """A file that another rank is sending."""

    def __init__(self, root: Path, number: int, name: str, size: int) -> None:
        if not NAME.fullmatch(name):
            raise _Refused(f"{name!r} is not the name of a file of a checkpoint")
        self.number, self._size = number, size
        self._path = root / name
        self._part = self._path.with_name(f"{self._path.name}.part")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = open(self._part, "wb", buffering=0)  # noqa: SIM115
        self._came = self._crc = 0

    def write(self, piece: Buffer) -> None:
        view = memoryview(piece)
        while view:
            written = self._file.write(view)
            view = view[written or 0 :]
        self._came += len(piece)
        self._crc = zlib.crc32(piece, self._crc)

    def finish(self, crc: int) -> None:
        """Puts the file in its place if it is all there."""
        if (self._came, self._crc) != (self._size, crc):
            raise _Refused(f"{self._came} bytes of {self._size} came, or others than were sent")
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._path)
        sync(self._path.parent)

    def give_up(self) -> None:
        """Leaves nothing of it."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._part.unlink(missing_ok=True)


def next_size(size: int, seconds: float) -> int:
    """Bytes of the next piece, after one of so many that took so long."""
    return min(PIECE_MOST, 2 * size) if seconds < PIECE_SECONDS else max(PIECE_LEAST, size // 2)
